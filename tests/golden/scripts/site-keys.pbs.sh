#!/bin/bash
#PBS -N p2p
#PBS -q gpu
#PBS -P ours
#PBS -A me
#PBS -l select=2:ncpus=1:mpiprocs=1:gpu_type=a100
#PBS -l place=scatter:excl
#PBS -l walltime=01:00:00
#PBS -l filesystems=home:eagle
#PBS -r y
#PBS -o /scratch/me/runs/site-keys/
#PBS -j oe
#PBS -k oed
#PBS -W umask=077
#PBS -v LAUNCHER_TOKEN=launcher-ec1e6416c056280ed104
#PBS -S /bin/bash

# Run site-keys, made by launcher VERSION: `launcher status site-keys`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/site-keys LAUNCHER_NAME=p2p
export LAUNCHER_NODES=2 LAUNCHER_PROCS_PER_NODE=1 LAUNCHER_GPUS_PER_NODE=0
export LAUNCHER_JOB_ID="$PBS_JOBID"
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/site-keys/job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment=/scratch/me/runs/site-keys/environment.sh launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"
