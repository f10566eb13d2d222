#!/bin/bash
#PBS -N fsdp_lm
#PBS -l select=2:ncpus=32:mpiprocs=1:ompthreads=8:ngpus=4
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -r y
#PBS -o /scratch/me/runs/gpus/
#PBS -j oe
#PBS -k oed
#PBS -W umask=077
#PBS -v LAUNCHER_TOKEN=launcher-602027336e6e61286e7a
#PBS -S /bin/bash

# Run gpus, made by launcher VERSION: `launcher status gpus`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/gpus LAUNCHER_NAME=fsdp_lm
export LAUNCHER_NODES=2 LAUNCHER_PROCS_PER_NODE=4 LAUNCHER_GPUS_PER_NODE=4
export LAUNCHER_JOB_ID="$PBS_JOBID"
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/gpus/job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment=/scratch/me/runs/gpus/environment.sh launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"
