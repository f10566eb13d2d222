#!/bin/bash
#SBATCH --job-name=p2p
#SBATCH --comment=launcher-c2a1faafe3447e4f6eae
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --output=/scratch/me/runs/installed-activate/output-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR2@120

# Run installed-activate, made by launcher VERSION: `launcher status installed-activate`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/installed-activate LAUNCHER_NAME=p2p
export LAUNCHER_NODES=2 LAUNCHER_PROCS_PER_NODE=1 LAUNCHER_GPUS_PER_NODE=0
export LAUNCHER_JOB_ID="${LAUNCHER_JOB_ID:-${SLURM_JOB_ID:-}}"
launcher_for_good="scontrol update JobId=$LAUNCHER_JOB_ID Requeue=0"  # before 93, for sites that requeue for an exit code
launcher_driver=(/usr/bin/python3 -I /world/installed/launcher/job/__main__.py /scratch/me/runs/installed-activate/job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment='' launcher_modules=yes
for launcher_try in {1..30}; do [ -r /world/installed/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/installed/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
{
launcher_env=/envs/torch
if [ -d "$launcher_env/conda-meta" ]; then
  export PATH="$launcher_env/bin:$PATH" CONDA_PREFIX="$launcher_env" CONDA_DEFAULT_ENV="$launcher_env" CONDA_SHLVL=1
  unset PYTHONHOME
  for launcher_file in "$launcher_env"/etc/conda/activate.d/*.sh; do
    if [ -r "$launcher_file" ]; then . "$launcher_file"; fi
  done
  true
elif [ -r "$launcher_env/bin/activate" ]; then
  . "$launcher_env/bin/activate"
else
  echo "launcher: $(hostname) sees no environment in $launcher_env (env.activate)" >&2
  false
fi
} || launcher_setup_failed 1
exec "${launcher_driver[@]}"
