# 6 points on pbs: 0-5
#   0: seed=0 lr=0.1
#   1: seed=1 lr=0.1
#   2: seed=2 lr=0.1
#   ... 5: seed=2 lr=0.01
#!/bin/bash
#PBS -N ddp_mnist
#PBS -l select=1:ncpus=1:mpiprocs=1:ompthreads=1
#PBS -l walltime=01:00:00
#PBS -J 0-5%2
#PBS -r y
#PBS -o /scratch/me/runs/throttle/arrays/
#PBS -j oe
#PBS -k oed
#PBS -W umask=077
#PBS -v LAUNCHER_TOKEN=launcher-96b7acaa8eb3e655c6f4-0
#PBS -S /bin/bash

# Run throttle, made by launcher VERSION: `launcher status throttle`. What this file does: docs/job-script.md
export LAUNCHER_RUN_DIR=/scratch/me/runs/throttle LAUNCHER_NAME=ddp_mnist
export LAUNCHER_NODES=1 LAUNCHER_PROCS_PER_NODE=1 LAUNCHER_GPUS_PER_NODE=0
export LAUNCHER_JOB_ID="${PBS_ARRAY_ID/\[\]/}_$PBS_ARRAY_INDEX" LAUNCHER_ARRAY_INDEX="$((PBS_ARRAY_INDEX))"
export LAUNCHER_OUTPUT="$PBS_JOBID.OU"
launcher_driver=(/usr/bin/python3 -I /world/checkout/launcher/job/__main__.py /scratch/me/runs/throttle/arrays/launcher-96b7acaa8eb3e655c6f4-0.job.json)
launcher_workdir=/world/project launcher_umask=022 launcher_signals="TERM INT"
launcher_environment=/scratch/me/runs/throttle/arrays/launcher-96b7acaa8eb3e655c6f4-0.environment.sh launcher_modules=
for launcher_try in {1..30}; do [ -r /world/checkout/launcher/job/begin.sh ] && break; sleep 2; done  # a file server may not answer at once
. /world/checkout/launcher/job/begin.sh || { ${launcher_for_good:-}; exit 93; }
exec "${launcher_driver[@]}"
