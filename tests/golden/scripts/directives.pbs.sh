#!/bin/bash
#PBS -N p2p
#PBS -l select=2:ncpus=1:mpiprocs=1:ompthreads=1
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -r y
#PBS -o /scratch/me/runs/directives/
#PBS -j oe
#PBS -k oed
#PBS -W umask=077
#PBS -v LAUNCHER_TOKEN=launcher-51ee00849c685ac1638b
#PBS -S /bin/bash
#PBS -m abe
#PBS -M me@here
#PBS -W group_list=ours
#PBS -h

# Run directives, made by launcher VERSION: `launcher status directives`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/directives LAUNCHER_NAME=p2p
export LAUNCHER_NODES=2 LAUNCHER_PROCS_PER_NODE=1 LAUNCHER_GPUS_PER_NODE=0
export LAUNCHER_JOB_ID="$PBS_JOBID"
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/directives/job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment=/scratch/me/runs/directives/environment.sh launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"
