#!/bin/bash
#SBATCH --job-name=program
#SBATCH --comment=launcher-a719cf0b473dabd498b2
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --output=/scratch/me/runs/pyxis-folders/output-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR2@120

# Made by launcher VERSION for run pyxis-folders.
export LAUNCHER_RUN_DIR=/scratch/me/runs/pyxis-folders
export LAUNCHER_JOB_ID="${LAUNCHER_JOB_ID:-${SLURM_JOB_ID:-}}"

umask 077
unset LAUNCHER_DEADLINE LAUNCHER_TIME_LEFT LAUNCHER_DEADLINE_UPTIME  # from an earlier attempt
# Reading a shared file has three outcomes: it exists, it does not, or this is not known now (a transient error).
# `[ -e ]` takes the last one for "does not exist": then a run would be done twice, or start although it was cancelled.
passes() {  # MESSAGE: whether it is the C library's message of a transient error
  case $1 in
    *"Bad file descriptor" | \
    *"Cannot allocate memory" | \
    *"Cannot send after transport endpoint shutdown" | \
    *"Connection refused" | \
    *"Connection reset by peer" | \
    *"Connection timed out" | \
    *"Device or resource busy" | \
    *"Host is down" | \
    *"Input/output error" | \
    *"Interrupted system call" | \
    *"Link has been severed" | \
    *"Network is down" | \
    *"Network is unreachable" | \
    *"No buffer space available" | \
    *"No route to host" | \
    *"No such device" | \
    *"Protocol error" | \
    *"Remote I/O error" | \
    *"Resource temporarily unavailable" | \
    *"Software caused connection abort" | \
    *"Stale file handle" | \
    *"Too many open files in system" | \
    *"Too many open files" | \
    *"Transport endpoint is not connected")
      return 0
      ;;
  esac
  return 1
}
waits() {  # MESSAGE SINCE: pauses before a retry; 1: the error is not transient, or has lasted for 60 s
  if ! passes "$1" || [ $((SECONDS - $2)) -ge 60 ]; then
    echo "launcher: $(hostname): $1" >&2
    return 1
  fi
  sleep 1
}
reads() {  # COMMAND: 0 it succeeds, 1 there is no such file, or nothing in it, 2 not known
  local words since=$SECONDS
  until words=$(LC_ALL=C "$@" 2>&1 >/dev/null); do
    words=$(printf '%s\n' "$words" | grep -v -e ': No such file or directory$' -e ': Not a directory$')
    [ -n "$words" ] || return 1
    waits "${words%%$'\n'*}" "$since" || return 2
  done
}
ends_in() {  # SECONDS until the scheduler ends this attempt; nodes' clocks may differ, see launcher/runs/time_left.py
  local up booted
  export LAUNCHER_DEADLINE=$(($(date +%s) + $1)) LAUNCHER_TIME_LEFT=$1
  if read -r up _ </proc/uptime && read -r booted </proc/sys/kernel/random/boot_id; then
    export LAUNCHER_DEADLINE_UPTIME="$booted $((${up%%.*} + $1))"
  fi
}
marked() {  # FILE ...: 0 the run directory has one of these files, 1 it has none, 2 not known
  local mark found=1
  for mark; do
    reads stat -L "$LAUNCHER_RUN_DIR/$mark"
    case $? in 0) return 0 ;; 2) found=2 ;; esac
  done
  return $found
}

# The lease: only one attempt of a run at a time. A job holds it if it has made the hard link (atomic on NFS as well), and
# updates the link's time as a heartbeat. A lease of the same job is from an earlier start of it. A lease without a
# heartbeat for 90 s is that of a dead job. One that cannot be read is not taken over, and that time does not count.
launcher_lease="$LAUNCHER_RUN_DIR/lease" launcher_lease_of_mine="$LAUNCHER_RUN_DIR/.lease-${LAUNCHER_JOB_ID//\//_}-$$"
launcher_lease_unread=$SECONDS
until launcher_lease_words=$(LC_ALL=C; { echo "$LAUNCHER_JOB_ID" >"$launcher_lease_of_mine"; } 2>&1); do
  waits "$launcher_lease_words" "$launcher_lease_unread" && continue
  ! passes "$launcher_lease_words" || exit 75
  echo "launcher: $(hostname) cannot write to $LAUNCHER_RUN_DIR: is it on a file system that all nodes share?" >&2
  exit 93
done
launcher_lease_moved=0 launcher_lease_fails=0 launcher_lease_seen= launcher_lease_since=$(date +%s) launcher_lease_unread=$SECONDS
until launcher_lease_words=$(LC_ALL=C ln "$launcher_lease_of_mine" "$launcher_lease" 2>&1) || [ "$launcher_lease" -ef "$launcher_lease_of_mine" ]; do
  launcher_lease_now=$(LC_ALL=C stat -c '%i %y' "$launcher_lease" 2>&1)
  launcher_lease_is=$?
  if passes "$launcher_lease_words" || { [ "$launcher_lease_is" -ne 0 ] && passes "$launcher_lease_now"; }; then
    launcher_lease_seen= launcher_lease_since=$(date +%s)
    passes "$launcher_lease_words" || launcher_lease_words=$launcher_lease_now
    waits "$launcher_lease_words" "$launcher_lease_unread" && continue
    rm -f "$launcher_lease_of_mine"
    exit 75
  fi
  launcher_lease_unread=$SECONDS
  if [ "$launcher_lease_is" -ne 0 ]; then  # it was just released, or hard links are not supported here
    launcher_lease_fails=$((launcher_lease_fails + 1))
    if [ "$launcher_lease_fails" -gt 20 ]; then
      echo "launcher: no hard links in $LAUNCHER_RUN_DIR: nothing keeps two attempts of this run apart" >&2
      launcher_lease=$launcher_lease_of_mine
      break
    fi
    sleep 2
    continue
  fi
  launcher_lease_fails=0
  read -r launcher_lease_job launcher_lease_rest 2>/dev/null <"$launcher_lease" || launcher_lease_job=
  if [ "$launcher_lease_now" != "$launcher_lease_seen" ]; then
    [ "${launcher_lease_seen%% *}" = "${launcher_lease_now%% *}" ] && launcher_lease_moved=$((launcher_lease_moved + 1)) || launcher_lease_moved=0
    launcher_lease_seen=$launcher_lease_now launcher_lease_since=$(date +%s)
  fi
  if [ "$launcher_lease_job" = "${LAUNCHER_JOB_ID:-none}" ] || [ $(($(date +%s) - launcher_lease_since)) -ge 90 ]; then
    # Several jobs may find it dead: one at a time checks it once more and removes it.
    if mkdir "$launcher_lease.lock" 2>/dev/null; then
      [ "$(stat -c '%i %y' "$launcher_lease" 2>/dev/null)" != "$launcher_lease_seen" ] || rm -f "$launcher_lease"
      rmdir "$launcher_lease.lock"
    elif launcher_lease_locked=$((${launcher_lease_locked:-0} + 1)) && [ "$launcher_lease_locked" -gt 300 ]; then
      launcher_lease_locked=0
      rmdir "$launcher_lease.lock" 2>/dev/null  # left by a job that was killed meanwhile
    fi
    sleep 0.1
    continue
  fi
  if [ "$launcher_lease_moved" -ge 3 ]; then
    echo "launcher: $LAUNCHER_RUN_DIR runs already, in job $launcher_lease_job (attempt and host: $launcher_lease_rest): job $LAUNCHER_JOB_ID ends" >&2
    rm -f "$launcher_lease_of_mine"
    exit 93
  fi
  sleep 2
done

release() { [ ! "$launcher_lease" -ef "$launcher_lease_of_mine" ] || rm -f "$launcher_lease"; rm -f "$launcher_lease_of_mine"; }
trap release EXIT
# A run may have been submitted twice by mistake. If it is done, this job ends.
reads ls "$LAUNCHER_RUN_DIR/attempts"
[ $? -ne 2 ] || exit 75
reads grep -q '"event": "ended", "code": 0}' "$LAUNCHER_RUN_DIR"/attempts/*/events/script.jsonl
case $? in
  0)
    echo "launcher: $LAUNCHER_RUN_DIR is done already: job $LAUNCHER_JOB_ID ends" >&2
    exit 0
    ;;
  2) exit 75 ;;
esac
# Each start of the run is an attempt. Its number is that of the folder which it creates.
LAUNCHER_ATTEMPT=0 launcher_attempt_since=$SECONDS
until launcher_attempt_words=$(LC_ALL=C mkdir "$LAUNCHER_RUN_DIR/attempts/$LAUNCHER_ATTEMPT" 2>&1); do
  reads stat -L "$LAUNCHER_RUN_DIR/attempts/$LAUNCHER_ATTEMPT"
  case $? in
    0)
      LAUNCHER_ATTEMPT=$((LAUNCHER_ATTEMPT + 1))
      continue
      ;;
    2) exit 75 ;;
  esac
  waits "$launcher_attempt_words" "$launcher_attempt_since" && continue
  ! passes "$launcher_attempt_words" || exit 75
  echo "launcher: $(hostname) cannot write to $LAUNCHER_RUN_DIR/attempts: is it on a file system that all nodes share?" >&2
  exit 93
done
export LAUNCHER_ATTEMPT LAUNCHER_LEASE="$launcher_lease"
echo "$LAUNCHER_JOB_ID $LAUNCHER_ATTEMPT $(hostname)" >"$launcher_lease_of_mine"
mkdir "$LAUNCHER_RUN_DIR/attempts/$LAUNCHER_ATTEMPT/events"
event() {  # NAME [, "key": value ...]
  local words since=$SECONDS
  until words=$(
    LC_ALL=C
    { printf '{"time": %s, "event": "%s"%s}\n' "$(date +%s.%N)" "$1" "${2-}" \
      >>"$LAUNCHER_RUN_DIR/attempts/$LAUNCHER_ATTEMPT/events/script.jsonl"; } 2>&1
  ); do
    waits "$words" "$since" || return
  done
}
# Attempts of one job write to the same file: the offset in bytes at which the output of this attempt begins.
launcher_begins=$(stat -Lc %s "/proc/$$/fd/1" 2>/dev/null)
event started ", \"job\": \"$LAUNCHER_JOB_ID\", \"host\": \"$(hostname)\", \"output\": ${launcher_begins:-0}"
ln -sf payload.pkl "$LAUNCHER_RUN_DIR/submitit/${LAUNCHER_JOB_ID}_submitted.pkl"
launcher_stop_requested=
trap 'launcher_stop_requested=stop_requested' TERM INT  # ranks get the signal too; this script records their end
marked stop cancelled
case $? in
  0)
    launcher_reason=stop_file
    [ ! -e "$LAUNCHER_RUN_DIR/cancelled" ] || launcher_reason=cancelled
    ;;
  2) launcher_reason=unreadable ;;
  *) launcher_reason= ;;
esac
if [ -n "$launcher_reason" ]; then
  event stop ", \"reason\": \"$launcher_reason\""
  event ended ', "code": 75'
  exit 75
fi
# The time at which the scheduler ends this attempt.
if [ -n "${SLURM_JOB_ID:-}" ]; then
  # One element of an array has the array's id as SLURM_JOB_ID.
  launcher_ends=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
  launcher_ends=$(SLURM_TIME_FORMAT=standard timeout 10 squeue -h -j "$launcher_ends" -o %e 2>/dev/null)
  # The end is given in the time of Slurm's controller, so the present time is taken from there; else from this node.
  launcher_now=$(SLURM_TIME_FORMAT=standard timeout 10 scontrol show config 2>/dev/null | sed -n '1s/^Configuration data as of //p')
  case $launcher_now in [0-9]*T*) ;; *) launcher_now=now ;; esac
  case $launcher_ends in [0-9]*T*) ends_in $(($(date -d "$launcher_ends" +%s) - $(date -d "$launcher_now" +%s))) ;; esac
fi
[ -n "${LAUNCHER_DEADLINE:-}" ] || ends_in 3600
umask 022
export LAUNCHER_SECRETS='*TOKEN*,*SECRET*,*PASSWORD*,*PASSWD*,*PASSPHRASE*,*CREDENTIAL*,*_KEY,*APIKEY*,*COOKIE*,*_PAT,*_AUTH,!*TOKENIZER*,!MAX_*,!NUM_*'
cd /scratch/me/runs/pyxis-folders/code || {
  event fault ", \"code\": \"no_folder\", \"error\": "'"its working folder /scratch/me/runs/pyxis-folders/code cannot be entered there: submit in a folder that all nodes share"'", \"host\": \"$(hostname)\", \"ends_with\": 93"
  event ended ', "code": 93'
  exit 93
}

# Set-up lines: of cluster=slurm, then of env.
setup_failed() {  # LINE CODE WHAT FIELDS
  echo "launcher: $3 failed on $(hostname) (exit $2)" >&2
  event setup_failed ", \"line\": $1, $4, \"code\": $2, \"host\": \"$(hostname)\""
  event ended ', "code": 93'
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
(umask 077 && mkdir -p /data/me/checkpoints)
} || setup_failed 1 $? 'making /data/me/checkpoints, to be seen in env.container' '"of": "folder", "name": "/data/me/checkpoints"'
{
(umask 077 && mkdir -p /data/me/tensorboard)
} || setup_failed 2 $? 'making /data/me/tensorboard, to be seen in env.container' '"of": "folder", "name": "/data/me/tensorboard"'
set +e  # a set-up line may have set -e, but this script has to record how the ranks end

unset SLURM_EXPORT_ENV  # set by sbatch --export=NONE: srun has to pass the variables that are set here
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-"1"}"
export PYTHONPATH=/opt/lib
# Folders of the repository on PYTHONPATH are replaced by those of the snapshot, so that later edits have no effect.
launcher_path='' launcher_code=$(realpath -m /scratch/me/runs/pyxis-folders/code)
while IFS= read -r -d : launcher_folder; do
  launcher_real=$(realpath -m "${launcher_folder:-.}")
  case $launcher_real/ in
    "$launcher_code"/* | */site-packages/*) ;;
    /world/project/*) launcher_folder=/scratch/me/runs/pyxis-folders/code${launcher_real#/world/project} ;;
  esac
  case :$launcher_path: in
    *:"$launcher_folder":*) ;;
    *) launcher_path+=:$launcher_folder ;;
  esac
done <<<"${PYTHONPATH:+$PYTHONPATH:}"
export PYTHONPATH="${launcher_path#:}"
case ":${PYTHONPATH:-}:" in
  *:/world/checkout:*) ;;
  *) export PYTHONPATH=/world/checkout"${PYTHONPATH:+:$PYTHONPATH}" ;;
esac
# Heartbeat of the lease. It stops when this script ends, even if it is killed, since that closes the pipe.
exec 9> >(trap '' TERM INT; while read -r -t 15.0 _; [ $? -gt 128 ]; do
  [ ! "$launcher_lease" -ef "$launcher_lease_of_mine" ] || touch -c "$launcher_lease"
done)

# In a job that is being deleted PBS starts no more tasks.
if [ -n "$launcher_stop_requested" ]; then
  event stop_requested ", \"signal\": \"SIGTERM\", \"host\": \"$(hostname)\""
  (exit 143)
else
  env -u LD_LIBRARY_PATH -u LD_PRELOAD -u PYTHONHOME -u PYTHONPATH -u VIRTUAL_ENV -u CONDA_PREFIX srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=1 --unbuffered --kill-on-bad-exit=1 --container-image=/images/torch.sqsh --container-mounts=/scratch/me/runs:/scratch/me/runs,/world/checkout:/world/checkout,/data/me/checkpoints:/data/me/checkpoints,/data/me/tensorboard:/data/me/tensorboard --container-workdir=/scratch/me/runs/pyxis-folders/code \
    sh -c 'cd "$0" && export PYTHONNOUSERSITE=1 PYTHONPATH="$1${PYTHONPATH:+:$PYTHONPATH}" && shift && exec "$@"' /scratch/me/runs/pyxis-folders/code /world/checkout:/opt/lib python3 -u -c 'import sys; sys.path[:] = filter(None, sys.path); import runpy; runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)' launcher.agent "$LAUNCHER_RUN_DIR" 9>&-
fi

code=$?
# 0: done. 75: stopped early, can be resumed. 93: a retry would fail too. Anything else: failed.
launcher_word=
# The exit code of the agent that failed first takes precedence over that of the command, which may have been killed.
reads cat "$LAUNCHER_RUN_DIR/attempts/$LAUNCHER_ATTEMPT/exit_code"
case $? in
  0) read -r launcher_word <"$LAUNCHER_RUN_DIR/attempts/$LAUNCHER_ATTEMPT/exit_code" ;;
  2)
    if [ "$code" -ne 0 ]; then
      event stop ', "reason": "exit_unread"'
      launcher_word=75
    fi
    ;;
esac
case $launcher_word in
  '' | *[!0-9]*) ;;  # a full disk
  0) ;;  # all nodes are needed, so the command's exit code counts; else a node that came too late may have failed
  *) code=$launcher_word ;;
esac
# If all agents were killed before they recorded an exit code, the run continues from its checkpoints.
# (255 is no signal: a container, or a shell on another host, could not start.)
if [ "$code" -gt 128 ] && [ "$code" -lt 255 ] && [ -z "$launcher_word" ]; then
  event stop ", \"reason\": \"killed\", \"exit_code\": $code"
  code=75
fi
event ended ", \"code\": $code"
if [ "$code" -eq 75 ]; then
  # Slurm ends all processes of a job that it requeues; the one that requests it still has to record that.
  (trap '' TERM INT; exec /usr/bin/python3 -c 'import sys; sys.path[:] = filter(None, sys.path); import runpy; runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)' launcher.job.requeue "$LAUNCHER_RUN_DIR" $launcher_stop_requested 9>&-)
  case $? in
    10)
      exec 9>&-
      release
      exec bash "$0"
      ;;
    93)
      code=93
      event ended ', "code": 93'
      ;;
    0 | 75) ;;
    *) event stays ', "what": "stays", "reason": "launcher_error"' ;;
  esac
fi
exit "$code"
