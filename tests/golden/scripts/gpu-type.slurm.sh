#!/bin/bash
#SBATCH --job-name=p2p
#SBATCH --comment=launcher-6734df7b486d95a44bc7
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gres=gpu:a100:4
#SBATCH --time=01:00:00
#SBATCH --output=/scratch/me/runs/gpu-type/output-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR2@120

# Run gpu-type, made by launcher VERSION: `launcher status gpu-type`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/gpu-type LAUNCHER_NAME=p2p
export LAUNCHER_NODES=1 LAUNCHER_PROCS_PER_NODE=4 LAUNCHER_GPUS_PER_NODE=4
export LAUNCHER_JOB_ID="${LAUNCHER_JOB_ID:-${SLURM_JOB_ID:-}}"
launcher_for_good="scontrol update JobId=$LAUNCHER_JOB_ID Requeue=0"  # before 93, for sites that requeue for an exit code
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/gpu-type/job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment='' launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"
