#!/bin/bash
#SBATCH --job-name=ddp_mnist
#SBATCH --comment=launcher-56931c3efb60f46f02a4
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --output=/scratch/me/runs/preflight/output-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR2@120

# Run preflight, made by launcher VERSION: `launcher status preflight`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/preflight LAUNCHER_NAME=ddp_mnist
export LAUNCHER_NODES=2 LAUNCHER_PROCS_PER_NODE=1 LAUNCHER_GPUS_PER_NODE=0
export LAUNCHER_JOB_ID="${LAUNCHER_JOB_ID:-${SLURM_JOB_ID:-}}"
launcher_for_good="scontrol update JobId=$LAUNCHER_JOB_ID Requeue=0"  # before 93, for sites that requeue for an exit code
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/preflight/job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment='' launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"
