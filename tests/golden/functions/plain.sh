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

# Made by launcher VERSION for submitit. What this file does: docs/job-script.md
export LAUNCHER_OWN_JOB="$PBS_JOBID"
export LAUNCHER_JOB_ID="$PBS_JOBID"
export LAUNCHER_OUTPUT="$PBS_JOBID.OU"
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py functions /world/functions/plain/.00000000000000000000000000000000.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment=/world/functions/plain/.environment-c7435d2a5519124d.sh launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"
