#!/bin/bash
#$ -N p2p
#$ -pe mpi 2
#$ -l h_rt=01:00:00
#$ -r y
#$ -notify
#$ -o /scratch/me/runs/agents/output-$JOB_ID.log
#$ -j y
#$ -ac LAUNCHER_TOKEN=launcher-7ff5b8299f93d5648b02
#$ -S /bin/bash

# Run agents, made by launcher VERSION: `launcher status agents`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/agents LAUNCHER_NAME=p2p
export LAUNCHER_NODES=2 LAUNCHER_PROCS_PER_NODE=4 LAUNCHER_GPUS_PER_NODE=0
export LAUNCHER_JOB_ID="$JOB_ID"
trap '' USR1  # comes before a suspension (-notify)
chmod 600 "$SGE_STDOUT_PATH" 2>/dev/null
export LAUNCHER_SGE_AGAIN="$LAUNCHER_RUN_DIR/.again-$LAUNCHER_JOB_ID-$$"  # Grid Engine starts a job again that exits with 99
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/agents/job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT USR2"
launcher_environment=/scratch/me/runs/agents/environment.sh launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"
