#!/bin/bash
#PBS -N three
#PBS -l select=2:ncpus=3:mpiprocs=3:ompthreads=1
#PBS -l place=scatter
#PBS -l walltime=00:05:00
#PBS -l filesystems=home
#PBS -r n
#PBS -o /world/functions/tasks/
#PBS -j oe
#PBS -k oed
#PBS -W umask=077
#PBS -v LAUNCHER_TOKEN=launcher-00000000000000000000000000000000
#PBS -S /bin/bash
#PBS -m n

# Made by launcher VERSION for a function that was submitted through submitit.
umask 077
if [ ! -r /world/functions/tasks/.environment-c7435d2a5519124d.sh ]; then
  echo "launcher: $(hostname) cannot read "/world/functions/tasks/.environment-c7435d2a5519124d.sh": is it on a file system that all nodes share?" >&2
  exit 93
fi
. /world/functions/tasks/.environment-c7435d2a5519124d.sh
umask 022
cd /world/project || exit 93
LAUNCHER_OWN_JOB="$PBS_JOBID"
LAUNCHER_PAYLOAD=/world/functions/tasks/.00000000000000000000000000000000_0.pkl
LAUNCHER_JOB_ID="${LAUNCHER_FIRST_JOB:-$LAUNCHER_OWN_JOB}"
LAUNCHER_SCRIPT=/world/functions/tasks/.00000000000000000000000000000000.sh
LAUNCHER_DEADLINE=$(($(date +%s) + 210))
export LAUNCHER_OWN_JOB LAUNCHER_PAYLOAD LAUNCHER_JOB_ID LAUNCHER_SCRIPT LAUNCHER_DEADLINE LAUNCHER_UMASK=022
export LAUNCHER_JOB_NAME=three SUBMITIT_EXECUTOR=pbs
export PYTHONPATH=/world/checkout"${PYTHONPATH:+:$PYTHONPATH}"
trap : TERM INT  # the tasks get the signal too

LAUNCHER_TASK_FILES="$(mktemp -u /world/functions/tasks/.tasks-XXXXXXXXXX)"
export LAUNCHER_TASK_FILES
/usr/bin/python3 -c 'import sys; sys.path[:] = filter(None, sys.path); import runpy; runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)' launcher.schedulers.tasks --go-on --pbsdsh 2 3 8 \
  /usr/bin/python3 -u -c 'import sys; sys.path[:] = filter(None, sys.path); import runpy; runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)' launcher.schedulers.functions.task /world/functions/tasks --merge-output
code=$?
rm -rf "$LAUNCHER_TASK_FILES"
launcher_output=/world/functions/tasks/"$PBS_JOBID".OU  # of the scheduler itself, or of the lines above
[ -s "$launcher_output" ] || rm -f "$launcher_output"
exit "$code"
