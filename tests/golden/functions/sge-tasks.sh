#!/bin/bash
#$ -N submitit
#$ -pe nodes 2
#$ -l h_rt=00:05:00
#$ -r y
#$ -notify
#$ -o /world/functions/sge-tasks/$JOB_ID.OU
#$ -j y
#$ -ac LAUNCHER_TOKEN=launcher-00000000000000000000000000000000
#$ -S /bin/bash

# Made by launcher VERSION for submitit. What this file does: docs/job-script.md
export LAUNCHER_OWN_JOB="$JOB_ID"
export LAUNCHER_JOB_ID="$JOB_ID"
export LAUNCHER_OUTPUT="$SGE_STDOUT_PATH"
trap '' USR1  # comes before a suspension (-notify)
chmod 600 "$SGE_STDOUT_PATH" 2>/dev/null
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py functions /world/functions/sge-tasks/.00000000000000000000000000000000.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT USR2"
launcher_environment=/world/functions/sge-tasks/.environment-514b40b3be6b01d1.sh launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"
