#!/bin/bash
#PBS -N submitit
#PBS -q workq
#PBS -l select=1:ncpus=3:mpiprocs=1:ompthreads=3:ngpus=1:mem=4194304kb
#PBS -l walltime=01:30:00
#PBS -J 0-4%2
#PBS -r y
#PBS -o /world/functions/array/
#PBS -j oe
#PBS -k oed
#PBS -W umask=077
#PBS -v LAUNCHER_TOKEN=launcher-00000000000000000000000000000000
#PBS -S /bin/bash

# Made by launcher VERSION for a function that was submitted through submitit.
umask 077
if [ ! -r /world/functions/array/.environment-c7435d2a5519124d.sh ]; then
  echo "launcher: $(hostname) cannot read "/world/functions/array/.environment-c7435d2a5519124d.sh": is it on a file system that all nodes share?" >&2
  exit 93
fi
. /world/functions/array/.environment-c7435d2a5519124d.sh
umask 022
cd /world/project || exit 93
LAUNCHER_OWN_JOB="$PBS_JOBID"
LAUNCHER_PAYLOAD=/world/functions/array/.00000000000000000000000000000000_"$((PBS_ARRAY_INDEX))".pkl
LAUNCHER_JOB_ID="${LAUNCHER_FIRST_JOB:-${PBS_ARRAY_ID/\[\]/}_$PBS_ARRAY_INDEX}"
LAUNCHER_SCRIPT=/world/functions/array/.00000000000000000000000000000000.sh
LAUNCHER_DEADLINE=$(($(date +%s) + 5310))
export LAUNCHER_OWN_JOB LAUNCHER_PAYLOAD LAUNCHER_JOB_ID LAUNCHER_SCRIPT LAUNCHER_DEADLINE LAUNCHER_UMASK=022
export LAUNCHER_JOB_NAME=submitit SUBMITIT_EXECUTOR=pbs
export PYTHONPATH=/world/checkout"${PYTHONPATH:+:$PYTHONPATH}"
trap : TERM INT  # the tasks get the signal too

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
  /usr/bin/python3 -u -c 'import sys; sys.path[:] = filter(None, sys.path); import runpy; runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)' launcher.schedulers.functions.task /world/functions/array
code=$?
echo over
launcher_output=/world/functions/array/"$PBS_JOBID".OU  # of the scheduler itself, or of the lines above
[ -s "$launcher_output" ] || rm -f "$launcher_output"
exit "$code"
