#!/bin/bash
#SBATCH --job-name=function
#SBATCH --comment=launcher-f9a357d1ff9c83a8298c
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --output=/scratch/me/runs/function/output-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR2@120

# Run function, made by launcher VERSION: `launcher status function`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/function LAUNCHER_NAME=function
export LAUNCHER_NODES=1 LAUNCHER_PROCS_PER_NODE=1 LAUNCHER_GPUS_PER_NODE=0
export LAUNCHER_JOB_ID="${LAUNCHER_JOB_ID:-${SLURM_JOB_ID:-}}"
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/function/job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment='' launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || exit 93
exec "${launcher_driver[@]}"
