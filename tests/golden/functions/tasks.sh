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

# Made by launcher VERSION for submitit. What this file does: docs/job-script.md
export LAUNCHER_OWN_JOB="$PBS_JOBID"
export LAUNCHER_JOB_ID="$PBS_JOBID"
export LAUNCHER_OUTPUT="$PBS_JOBID.OU"
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py functions /world/functions/tasks/.00000000000000000000000000000000.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment=/world/functions/tasks/.environment-c7435d2a5519124d.sh launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"
