# 3 points on pbs: 0-2
#   0: seed=1
#   1: seed=2
#   2: seed=3
#!/bin/bash
#PBS -N p2p
#PBS -l select=2:ncpus=1:mpiprocs=1:ompthreads=1
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -J 0-2
#PBS -r y
#PBS -o /scratch/me/runs/array/arrays/
#PBS -j oe
#PBS -k oed
#PBS -W umask=077
#PBS -v LAUNCHER_TOKEN=launcher-984a139b9b9eb150f70b-0
#PBS -S /bin/bash

# Run array, made by launcher VERSION: `launcher status array`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/array LAUNCHER_NAME=p2p
export LAUNCHER_NODES=2 LAUNCHER_PROCS_PER_NODE=1 LAUNCHER_GPUS_PER_NODE=0
export LAUNCHER_JOB_ID="${PBS_ARRAY_ID/\[\]/}_$PBS_ARRAY_INDEX" LAUNCHER_ARRAY_INDEX="$((PBS_ARRAY_INDEX))"
export LAUNCHER_OUTPUT="$PBS_JOBID.OU"
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/array/arrays/launcher-984a139b9b9eb150f70b-0.job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment=/scratch/me/runs/array/arrays/launcher-984a139b9b9eb150f70b-0.environment.sh launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"
