# 2 points on sge: 0-1
#   0: lr=0.1
#   1: lr=0.01
#!/bin/bash
#$ -N ddp_mnist
#$ -l h_rt=01:00:00
#$ -t 1-2
#$ -tc 1
#$ -r y
#$ -notify
#$ -o /scratch/me/runs/throttle/arrays/output-$JOB_ID_$TASK_ID.log
#$ -j y
#$ -ac LAUNCHER_TOKEN=launcher-96b7acaa8eb3e655c6f4-0
#$ -S /bin/bash

# Run throttle, made by launcher VERSION: `launcher status throttle`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/throttle LAUNCHER_NAME=ddp_mnist
export LAUNCHER_NODES=1 LAUNCHER_PROCS_PER_NODE=1 LAUNCHER_GPUS_PER_NODE=0
export LAUNCHER_JOB_ID="${JOB_ID}_$((SGE_TASK_ID - 1))" LAUNCHER_ARRAY_INDEX="$((SGE_TASK_ID - 1))"
export LAUNCHER_OUTPUT="output-${JOB_ID}_$SGE_TASK_ID.log"
trap '' USR1  # comes before a suspension (-notify)
chmod 600 "$SGE_STDOUT_PATH" 2>/dev/null
export LAUNCHER_SGE_AGAIN="$LAUNCHER_RUN_DIR/.again-$LAUNCHER_JOB_ID-$$"  # Grid Engine starts a job again that exits with 99
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/throttle/arrays/launcher-96b7acaa8eb3e655c6f4-0.job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT USR2"
launcher_environment=/scratch/me/runs/throttle/arrays/launcher-96b7acaa8eb3e655c6f4-0.environment.sh launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"
