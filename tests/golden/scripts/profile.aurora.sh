#!/bin/bash
#PBS -N program
#PBS -q debug
#PBS -A me
#PBS -l select=2
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -l filesystems=home:flare
#PBS -r y
#PBS -o /scratch/me/runs/profile/
#PBS -j oe
#PBS -k oed
#PBS -W umask=077
#PBS -v LAUNCHER_TOKEN=launcher-3ed46d16d9a6ed28f4b4
#PBS -S /bin/bash

# Run profile, made by launcher VERSION: `launcher status profile`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/profile LAUNCHER_NAME=program
export LAUNCHER_NODES=2 LAUNCHER_PROCS_PER_NODE=12 LAUNCHER_GPUS_PER_NODE=12
export LAUNCHER_JOB_ID="$PBS_JOBID"
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/profile/job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment=/scratch/me/runs/profile/environment.sh launcher_modules=yes
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
{
module load frameworks
} || launcher_setup_failed 1
exec "${launcher_driver[@]}"
