#!/bin/bash
#PBS -N submitit
#PBS -l select=1:ncpus=1:mpiprocs=1:ompthreads=1
#PBS -l walltime=00:05:00
#PBS -r y
#PBS -o /world/functions/plain/
#PBS -j oe
#PBS -k oed
#PBS -W umask=077
#PBS -v LAUNCHER_TOKEN=launcher-00000000000000000000000000000000
#PBS -S /bin/bash

# Made by launcher VERSION for a function that was submitted through submitit.
umask 077
if [ ! -r /world/functions/plain/.environment-c7435d2a5519124d.sh ]; then
  echo "launcher: $(hostname) cannot read "/world/functions/plain/.environment-c7435d2a5519124d.sh": is it on a file system that all nodes share?" >&2
  exit 93
fi
. /world/functions/plain/.environment-c7435d2a5519124d.sh
umask 022
cd /world/project || exit 93
LAUNCHER_OWN_JOB="$PBS_JOBID"
LAUNCHER_PAYLOAD=/world/functions/plain/.00000000000000000000000000000000_0.pkl
LAUNCHER_JOB_ID="${LAUNCHER_FIRST_JOB:-$LAUNCHER_OWN_JOB}"
LAUNCHER_SCRIPT=/world/functions/plain/.00000000000000000000000000000000.sh
LAUNCHER_DEADLINE=$(($(date +%s) + 210))
export LAUNCHER_OWN_JOB LAUNCHER_PAYLOAD LAUNCHER_JOB_ID LAUNCHER_SCRIPT LAUNCHER_DEADLINE LAUNCHER_UMASK=022
export LAUNCHER_JOB_NAME=submitit SUBMITIT_EXECUTOR=pbs
export PYTHONPATH=/world/checkout"${PYTHONPATH:+:$PYTHONPATH}"
trap : TERM INT  # the tasks get the signal too

LAUNCHER_TASK=0 LAUNCHER_TASKS=1 LAUNCHER_NODE=0 LAUNCHER_HOSTS="$(hostname)" LAUNCHER_GUARD="$LAUNCHER_OWN_JOB.$$" \
  /usr/bin/python3 -u -c 'import sys; sys.path[:] = filter(None, sys.path); import runpy; runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)' launcher.schedulers.functions.task /world/functions/plain
code=$?
launcher_output=/world/functions/plain/"$PBS_JOBID".OU  # of the scheduler itself, or of the lines above
[ -s "$launcher_output" ] || rm -f "$launcher_output"
exit "$code"
