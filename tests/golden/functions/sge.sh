#!/bin/bash
#$ -N submitit
#$ -q all.q
#$ -pe smp 3
#$ -l h_rt=01:30:00
#$ -l gpu=1
#$ -t 1-5
#$ -tc 2
#$ -r y
#$ -notify
#$ -o /world/functions/sge/$JOB_ID.$TASK_ID.OU
#$ -j y
#$ -ac LAUNCHER_TOKEN=launcher-00000000000000000000000000000000
#$ -S /bin/bash
#$ -m n

# Made by launcher VERSION for a function that was submitted through submitit.
umask 077
trap '' USR1  # comes before a suspension (-notify)
chmod 600 "$SGE_STDOUT_PATH" 2>/dev/null
if [ ! -r /world/functions/sge/.environment-514b40b3be6b01d1.sh ]; then
  echo "launcher: $(hostname) cannot read "/world/functions/sge/.environment-514b40b3be6b01d1.sh": is it on a file system that all nodes share?" >&2
  exit 93
fi
. /world/functions/sge/.environment-514b40b3be6b01d1.sh
umask 022
cd /world/project || exit 93
LAUNCHER_OWN_JOB="$JOB_ID"
LAUNCHER_PAYLOAD=/world/functions/sge/.00000000000000000000000000000000_"$((SGE_TASK_ID - 1))".pkl
LAUNCHER_JOB_ID="${LAUNCHER_FIRST_JOB:-${JOB_ID}_$((SGE_TASK_ID - 1))}"
LAUNCHER_SCRIPT=/world/functions/sge/.00000000000000000000000000000000.sh
LAUNCHER_DEADLINE=$(($(date +%s) + 5310))
export LAUNCHER_OWN_JOB LAUNCHER_PAYLOAD LAUNCHER_JOB_ID LAUNCHER_SCRIPT LAUNCHER_DEADLINE LAUNCHER_UMASK=022
export LAUNCHER_JOB_NAME=submitit SUBMITIT_EXECUTOR=sge
export PYTHONPATH=/world/checkout"${PYTHONPATH:+:$PYTHONPATH}"
trap : TERM INT USR2  # the tasks get the signal too

setup_failed() {  # LINE CODE
  echo "launcher: set-up line $1 failed on $(hostname) (exit $2)" >&2
  exit 93
}
# `module` is a shell function, and functions of the submitting shell are not passed to jobs.
if ! type module >/dev/null 2>&1; then
  for launcher_file in "${LMOD_PKG:+$LMOD_PKG/init/bash}" "${MODULESHOME:+$MODULESHOME/init/bash}" \
    /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh /usr/share/lmod/lmod/init/bash \
    /usr/share/Modules/init/bash /usr/share/modules/init/bash; do
    [ -r "$launcher_file" ] || continue
    . "$launcher_file"
    ! type module >/dev/null 2>&1 || break
  done
fi
{
module load cuda
} || setup_failed 1 $?
set +e  # a set-up line may have set -e, but this script has to record how the tasks end

LAUNCHER_TASK=0 LAUNCHER_TASKS=1 LAUNCHER_NODE=0 LAUNCHER_HOSTS="$(hostname)" LAUNCHER_GUARD="$LAUNCHER_OWN_JOB.$$" \
  /usr/bin/python3 -u -c 'import sys; sys.path[:] = filter(None, sys.path); import runpy; runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)' launcher.schedulers.functions.task /world/functions/sge
code=$?
launcher_output="$SGE_STDOUT_PATH"  # of the scheduler itself, or of the lines above
[ -s "$launcher_output" ] || rm -f "$launcher_output"
exit "$code"
