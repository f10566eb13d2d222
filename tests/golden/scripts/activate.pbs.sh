#!/bin/bash
#PBS -N p2p
#PBS -l select=2:ncpus=1:mpiprocs=1:ompthreads=1
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -r y
#PBS -o /scratch/me/runs/activate/
#PBS -j oe
#PBS -k oed
#PBS -W umask=077
#PBS -v LAUNCHER_TOKEN=launcher-71b6a1756b32f014c82d
#PBS -S /bin/bash

# Run activate, made by launcher VERSION: `launcher status activate`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/activate LAUNCHER_NAME=p2p
export LAUNCHER_NODES=2 LAUNCHER_PROCS_PER_NODE=1 LAUNCHER_GPUS_PER_NODE=0
export LAUNCHER_JOB_ID="$PBS_JOBID"
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/activate/job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment=/scratch/me/runs/activate/environment.sh launcher_modules=yes
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
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
