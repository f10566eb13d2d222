#!/bin/bash
#SBATCH --job-name=program
#SBATCH --comment=launcher-1c6323d3509bcd4379b3
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --output=/scratch/me/runs/snapshot/output-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR2@120

# Run snapshot, made by launcher VERSION: `launcher status snapshot`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/snapshot LAUNCHER_NAME=program
export LAUNCHER_NODES=1 LAUNCHER_PROCS_PER_NODE=1 LAUNCHER_GPUS_PER_NODE=0
export LAUNCHER_JOB_ID="${LAUNCHER_JOB_ID:-${SLURM_JOB_ID:-}}"
launcher_for_good="scontrol update JobId=$LAUNCHER_JOB_ID Requeue=0"  # before 93, for sites that requeue for an exit code
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/snapshot/job.json)
launcher_workdir=/scratch/me/runs/snapshot/code launcher_umask=022 launcher_signals="TERM INT"
launcher_environment='' launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"
