#!/bin/bash
#SBATCH --job-name=p2p
#SBATCH --comment=launcher-51ee00849c685ac1638b
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --output=/scratch/me/runs/directives/output-%j.log
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH --mem-per-cpu=2G
#SBATCH --licenses=matlab:1
#SBATCH --no-requeue

# Run directives, made by launcher VERSION: `launcher status directives`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/directives LAUNCHER_NAME=p2p
export LAUNCHER_NODES=2 LAUNCHER_PROCS_PER_NODE=1 LAUNCHER_GPUS_PER_NODE=0
export LAUNCHER_JOB_ID="${LAUNCHER_JOB_ID:-${SLURM_JOB_ID:-}}"
launcher_for_good="scontrol update JobId=$LAUNCHER_JOB_ID Requeue=0"  # before 93, for sites that requeue for an exit code
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/directives/job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment='' launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"
