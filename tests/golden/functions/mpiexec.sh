#!/bin/bash
#PBS -N submitit
#PBS -l select=2:ncpus=4:mpiprocs=4
#PBS -l place=scatter
#PBS -l walltime=00:05:00
#PBS -r y
#PBS -o /world/functions/mpiexec/
#PBS -j oe
#PBS -k oed
#PBS -W umask=077
#PBS -v LAUNCHER_TOKEN=launcher-00000000000000000000000000000000
#PBS -S /bin/bash

# Made by launcher VERSION for a function that was submitted through submitit.
umask 077
if [ ! -r /world/functions/mpiexec/.environment-c7435d2a5519124d.sh ]; then
  echo "launcher: $(hostname) cannot read "/world/functions/mpiexec/.environment-c7435d2a5519124d.sh": is it on a file system that all nodes share?" >&2
  exit 93
fi
. /world/functions/mpiexec/.environment-c7435d2a5519124d.sh
umask 022
cd /world/project || exit 93
LAUNCHER_OWN_JOB="$PBS_JOBID"
LAUNCHER_PAYLOAD=/world/functions/mpiexec/.00000000000000000000000000000000_0.pkl
LAUNCHER_JOB_ID="${LAUNCHER_FIRST_JOB:-$LAUNCHER_OWN_JOB}"
LAUNCHER_SCRIPT=/world/functions/mpiexec/.00000000000000000000000000000000.sh
LAUNCHER_DEADLINE=$(($(date +%s) + 210))
export LAUNCHER_OWN_JOB LAUNCHER_PAYLOAD LAUNCHER_JOB_ID LAUNCHER_SCRIPT LAUNCHER_DEADLINE LAUNCHER_UMASK=022
export LAUNCHER_JOB_NAME=submitit SUBMITIT_EXECUTOR=pbs
export PYTHONPATH=/world/checkout"${PYTHONPATH:+:$PYTHONPATH}"
trap : TERM INT  # the tasks get the signal too

LAUNCHER_TASK_FILES="$(mktemp -u /world/functions/mpiexec/.tasks-XXXXXXXXXX)"
export LAUNCHER_TASK_FILES
/usr/bin/python3 -c 'import sys; sys.path[:] = filter(None, sys.path); import runpy; runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)' launcher.schedulers.tasks --go-on '--mpiexec=mpiexec -n 8' 2 4 8 \
  /usr/bin/python3 -u -c 'import sys; sys.path[:] = filter(None, sys.path); import runpy; runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)' launcher.schedulers.functions.task /world/functions/mpiexec
code=$?
rm -rf "$LAUNCHER_TASK_FILES"
launcher_output=/world/functions/mpiexec/"$PBS_JOBID".OU  # of the scheduler itself, or of the lines above
[ -s "$launcher_output" ] || rm -f "$launcher_output"
exit "$code"
