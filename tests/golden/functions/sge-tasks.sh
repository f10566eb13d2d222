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

# Made by launcher VERSION for a function that was submitted through submitit.
umask 077
trap '' USR1  # comes before a suspension (-notify)
chmod 600 "$SGE_STDOUT_PATH" 2>/dev/null
if [ ! -r /world/functions/sge-tasks/.environment-514b40b3be6b01d1.sh ]; then
  echo "launcher: $(hostname) cannot read "/world/functions/sge-tasks/.environment-514b40b3be6b01d1.sh": is it on a file system that all nodes share?" >&2
  exit 93
fi
. /world/functions/sge-tasks/.environment-514b40b3be6b01d1.sh
umask 022
cd /world/project || exit 93
LAUNCHER_OWN_JOB="$JOB_ID"
LAUNCHER_PAYLOAD=/world/functions/sge-tasks/.00000000000000000000000000000000_0.pkl
LAUNCHER_JOB_ID="${LAUNCHER_FIRST_JOB:-$LAUNCHER_OWN_JOB}"
LAUNCHER_SCRIPT=/world/functions/sge-tasks/.00000000000000000000000000000000.sh
LAUNCHER_DEADLINE=$(($(date +%s) + 210))
export LAUNCHER_OWN_JOB LAUNCHER_PAYLOAD LAUNCHER_JOB_ID LAUNCHER_SCRIPT LAUNCHER_DEADLINE LAUNCHER_UMASK=022
export LAUNCHER_JOB_NAME=submitit SUBMITIT_EXECUTOR=sge
export PYTHONPATH=/world/checkout"${PYTHONPATH:+:$PYTHONPATH}"
trap : TERM INT USR2  # the tasks get the signal too

LAUNCHER_TASK_FILES="$(mktemp -u /world/functions/sge-tasks/.tasks-XXXXXXXXXX)"
export LAUNCHER_TASK_FILES
/usr/bin/python3 -c 'import sys; sys.path[:] = filter(None, sys.path); import runpy; runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)' launcher.schedulers.tasks --go-on --qrsh 2 3 8 \
  /usr/bin/python3 -u -c 'import sys; sys.path[:] = filter(None, sys.path); import runpy; runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)' launcher.schedulers.functions.task /world/functions/sge-tasks
code=$?
rm -rf "$LAUNCHER_TASK_FILES"
launcher_output="$SGE_STDOUT_PATH"  # of the scheduler itself, or of the lines above
[ -s "$launcher_output" ] || rm -f "$launcher_output"
exit "$code"
