# Every job script sources this before its set-up lines; docs/job-script.md explains both. The script has set
#   LAUNCHER_RUN_DIR      the run's directory; functions of submitit have none
#   launcher_driver       the command that the script becomes after the set-up lines
#   launcher_signals      names of the signals that ask the job to stop
#   launcher_workdir, launcher_umask
#   launcher_modules      not empty: the shell needs `module`
#   launcher_for_good     a command that keeps the scheduler from starting the job again for its exit code; may be unset
#   launcher_environment  file with the variables of the submitting shell, where the scheduler does not pass them

# The driver records what failed, and the job ends.
launcher_failed() {
  trap - EXIT
  exec "${launcher_driver[@]}" --failed "$@"
}
launcher_setup_failed() { launcher_failed setup "$1" "$?"; }

read -r LAUNCHER_BEGUN _ </proc/uptime  # the wall time counts from here
export LAUNCHER_BEGUN LAUNCHER_STOP=
for launcher_signal in $launcher_signals; do
  trap "LAUNCHER_STOP=SIG$launcher_signal" "$launcher_signal"  # during set-up; the driver sees it then
done

# A file server that does not answer looks like a file that is not there: so it gets a minute.
launcher_wait_until() {
  for ((launcher_try = 0; launcher_try < 30; launcher_try++)); do
    ! "$@" || return 0
    sleep 2
  done
  "$@"
}
launcher_sees_driver() { [ -x "${launcher_driver[0]}" ] && [ -r "${launcher_driver[2]}" ]; }
if ! launcher_wait_until launcher_sees_driver; then
  echo "launcher: $(hostname) cannot see ${launcher_driver[0]} or ${launcher_driver[2]}: are they on a file system that all nodes share?" >&2
  ${launcher_for_good:-}
  [ -n "${LAUNCHER_RUN_DIR:-}" ] || exit 93
  umask 077
  # Recorded as an attempt, for `launcher status`.
  launcher_attempts=$LAUNCHER_RUN_DIR${LAUNCHER_ARRAY_INDEX:+/$(sed -n "$((LAUNCHER_ARRAY_INDEX + 1))p" "${launcher_driver[3]%.job.json}")}/attempts
  launcher_try=0
  until mkdir "$launcher_attempts/$launcher_try" 2>/dev/null; do
    [ -d "$launcher_attempts/$launcher_try" ] || exit 93
    launcher_try=$((launcher_try + 1))
  done
  mkdir "$launcher_attempts/$launcher_try/events"
  printf "{\"time\": $(date +%s).0, \"event\": %s}\n" \
    "\"started\", \"job\": \"$LAUNCHER_JOB_ID\", \"host\": \"$(hostname)\"" \
    "\"fault\", \"code\": \"unreadable\", \"host\": \"$(hostname)\", \"ends_with\": 93, \"error\": \"it cannot see the launcher, or its Python\"" \
    "\"ended\", \"code\": 93" >"$launcher_attempts/$launcher_try/events/script.jsonl"
  : >"${launcher_attempts%/attempts}/over"  # for the jobs of a chain that follow
  exit 93
fi

umask "$launcher_umask"
if [ -n "$launcher_environment" ]; then
  launcher_wait_until [ -r "$launcher_environment" ] || launcher_failed environment "$launcher_environment"
  . "$launcher_environment"
fi
launcher_wait_until [ -x "$launcher_workdir/." ] || :
cd "$launcher_workdir" || launcher_failed folder "$launcher_workdir/."

# `module` is a shell function, and functions of the submitting shell are not passed to jobs.
if [ -n "$launcher_modules" ] && ! type module >/dev/null 2>&1; then
  for launcher_file in "${LMOD_PKG:+$LMOD_PKG/init/bash}" "${MODULESHOME:+$MODULESHOME/init/bash}" \
    /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh /usr/share/lmod/lmod/init/bash \
    /usr/share/Modules/init/bash /usr/share/modules/init/bash; do
    [ -r "$launcher_file" ] || continue
    . "$launcher_file"
    ! type module >/dev/null 2>&1 || break
  done
fi
# A set-up line may end the shell: with exit, or under set -u. The driver is started by exec, which runs no such trap.
trap 'launcher_failed setup 0 "$?"' EXIT
