#!/bin/bash
#PBS -N collective
#PBS -l select=1:ncpus=1:mpiprocs=1:ompthreads=1
#PBS -l walltime=01:00:00
#PBS -r y
#PBS -o /scratch/me/runs/one-rank/
#PBS -j oe
#PBS -k oed
#PBS -W umask=077
#PBS -v LAUNCHER_TOKEN=launcher-d31e053f6fcaebdb9610
#PBS -S /bin/bash

# Run one-rank, made by launcher VERSION: `launcher status one-rank`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/one-rank LAUNCHER_NAME=collective
export LAUNCHER_NODES=1 LAUNCHER_PROCS_PER_NODE=1 LAUNCHER_GPUS_PER_NODE=0
export LAUNCHER_JOB_ID="$PBS_JOBID"
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/one-rank/job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment=/scratch/me/runs/one-rank/environment.sh launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"
