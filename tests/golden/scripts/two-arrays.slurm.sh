# 2 points on slurm: 0-1
#   0: nodes=2 seed=1
#   1: nodes=2 seed=2
#!/bin/bash
#SBATCH --job-name=p2p
#SBATCH --comment=launcher-1d2acd7a1f649a01fef7-0
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --array=0-1%2
#SBATCH --output=/scratch/me/runs/two-arrays/arrays/output-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR2@120

# Run two-arrays, made by launcher VERSION: `launcher status two-arrays`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/two-arrays LAUNCHER_NAME=p2p
export LAUNCHER_NODES=2 LAUNCHER_PROCS_PER_NODE=1 LAUNCHER_GPUS_PER_NODE=0
export LAUNCHER_JOB_ID="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" LAUNCHER_ARRAY_INDEX="$((SLURM_ARRAY_TASK_ID))"
export LAUNCHER_OUTPUT="output-$LAUNCHER_JOB_ID.log"
launcher_for_good="scontrol update JobId=$LAUNCHER_JOB_ID Requeue=0"  # before 93, for sites that requeue for an exit code
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/two-arrays/arrays/launcher-1d2acd7a1f649a01fef7-0.job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment='' launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"

# 2 points on slurm: 2-3
#   2: nodes=3 seed=1
#   3: nodes=3 seed=2
#!/bin/bash
#SBATCH --job-name=p2p
#SBATCH --comment=launcher-1d2acd7a1f649a01fef7-1
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --array=0-1%1
#SBATCH --output=/scratch/me/runs/two-arrays/arrays/output-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR2@120

# Run two-arrays, made by launcher VERSION: `launcher status two-arrays`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/two-arrays LAUNCHER_NAME=p2p
export LAUNCHER_NODES=3 LAUNCHER_PROCS_PER_NODE=1 LAUNCHER_GPUS_PER_NODE=0
export LAUNCHER_JOB_ID="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" LAUNCHER_ARRAY_INDEX="$((SLURM_ARRAY_TASK_ID))"
export LAUNCHER_OUTPUT="output-$LAUNCHER_JOB_ID.log"
launcher_for_good="scontrol update JobId=$LAUNCHER_JOB_ID Requeue=0"  # before 93, for sites that requeue for an exit code
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/two-arrays/arrays/launcher-1d2acd7a1f649a01fef7-1.job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment='' launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"
