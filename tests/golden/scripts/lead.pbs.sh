#!/bin/bash
#PBS -N ddp_mnist
#PBS -l select=1:ncpus=1:mpiprocs=1:ompthreads=1
#PBS -l walltime=02:00:00
#PBS -r y
#PBS -o /scratch/me/runs/lead/
#PBS -j oe
#PBS -k oed
#PBS -W umask=077
#PBS -v LAUNCHER_TOKEN=launcher-09ea002799043ab44025
#PBS -S /bin/bash

# Run lead, made by launcher VERSION: `launcher status lead`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/lead LAUNCHER_NAME=ddp_mnist
export LAUNCHER_NODES=1 LAUNCHER_PROCS_PER_NODE=1 LAUNCHER_GPUS_PER_NODE=0
export LAUNCHER_JOB_ID="$PBS_JOBID"
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/lead/job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment=/scratch/me/runs/lead/environment.sh launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"
