#!/bin/bash
#PBS -N p2p
#PBS -l select=2:ncpus=1:mpiprocs=1:ompthreads=1
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -r y
#PBS -o /scratch/me/runs/modules/
#PBS -j oe
#PBS -k oed
#PBS -W umask=077
#PBS -v LAUNCHER_TOKEN=launcher-aa92ed39c78e17f07a14
#PBS -S /bin/bash

# Run modules, made by launcher VERSION: `launcher status modules`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/modules LAUNCHER_NAME=p2p
export LAUNCHER_NODES=2 LAUNCHER_PROCS_PER_NODE=1 LAUNCHER_GPUS_PER_NODE=0
export LAUNCHER_JOB_ID="$PBS_JOBID"
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/modules/job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment=/scratch/me/runs/modules/environment.sh launcher_modules=yes
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
{
type module >/dev/null 2>&1
} || launcher_setup_failed 1
{
module load gcc/13
} || launcher_setup_failed 2
{
module load cuda/12.4
} || launcher_setup_failed 3
{
ulimit -c 0
} || launcher_setup_failed 4
exec "${launcher_driver[@]}"
