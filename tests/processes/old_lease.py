"""A job that takes a run's lease, as it is now, or as jobs of earlier versions take it in Python or in bash.

python -m tests.processes.old_lease old|new RUN_DIR JOB POLL TIMEOUT BEATS PAUSE
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from launcher.runs.job_file import LeaseTimes
from launcher.runs.lease_and_locks import LeaseTaken, RunLease


class OldLease:
    """As of the version in which each job checked a dead lease and unlinked it, with the folder RUN/lease.lock made."""

    def __init__(self, run_dir: Path, job: str, poll: float, timeout: float) -> None:
        self.path, self._mine = run_dir / "lease", run_dir / f".lease-{job}-{os.getpid()}"
        self._job, self._poll, self._timeout = job, poll, timeout

    def take(self) -> bool:
        """Returns whether this job holds the lease; False: another one lives and holds it."""
        self._mine.write_text(f"{self._job}\n")
        seen: tuple[int, int] | None = None
        beats = locked = 0
        since = time.monotonic()
        while not self._linked():
            now = self._seen()
            if now is None:
                time.sleep(self._poll)
                continue
            if now != seen:
                beats = beats + 1 if seen is not None and seen[0] == now[0] else 0
                seen, since = now, time.monotonic()
            if time.monotonic() - since >= self._timeout:
                locked = self._take_away(now, locked)
                time.sleep(0.1)
            elif beats >= 3:
                self._mine.unlink()
                return False
            else:
                time.sleep(self._poll)
        self._mine.write_text(f"{self._job} 0 node1\n")
        return True

    def beat(self) -> None:
        if self._held():
            os.utime(self.path)

    def release(self) -> None:
        if self._held():
            self.path.unlink()
        self._mine.unlink()

    def _linked(self) -> bool:
        with contextlib.suppress(FileExistsError):
            os.link(self._mine, self.path)
            return True
        return False

    def _held(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samefile(self.path, self._mine)
        return False

    def _seen(self) -> tuple[int, int] | None:
        with contextlib.suppress(FileNotFoundError):
            found = self.path.stat()
            return found.st_ino, found.st_mtime_ns
        return None

    def _take_away(self, seen: tuple[int, int], locked: int) -> int:
        lock = f"{self.path}.lock"
        try:
            os.mkdir(lock)
        except OSError:
            if locked < 300:
                return locked + 1
        else:
            with contextlib.suppress(OSError):
                if self._seen() == seen:
                    self.path.unlink()
        with contextlib.suppress(OSError):
            os.rmdir(lock)
        return 0


# As of the version in which the job script took the lease.
SHELL = """
LAUNCHER_RUN_DIR=$1 LAUNCHER_JOB_ID=$2 poll=$3 timeout=$4 beats=$5 pause=$6
launcher_lease="$LAUNCHER_RUN_DIR/lease" launcher_lease_of_mine="$LAUNCHER_RUN_DIR/.lease-$LAUNCHER_JOB_ID-$$"
echo "$LAUNCHER_JOB_ID" >"$launcher_lease_of_mine"
launcher_lease_moved=0 launcher_lease_seen= launcher_lease_since=$(date +%s)
until ln "$launcher_lease_of_mine" "$launcher_lease" 2>/dev/null || [ "$launcher_lease" -ef "$launcher_lease_of_mine" ]
do
  if ! launcher_lease_now=$(stat -c '%i %y' "$launcher_lease" 2>&1); then
    sleep "$poll"
    continue
  fi
  read -r launcher_lease_job launcher_lease_rest 2>/dev/null <"$launcher_lease" || launcher_lease_job=
  if [ "$launcher_lease_now" != "$launcher_lease_seen" ]; then
    [ "${launcher_lease_seen%% *}" = "${launcher_lease_now%% *}" ] &&
      launcher_lease_moved=$((launcher_lease_moved + 1)) || launcher_lease_moved=0
    launcher_lease_seen=$launcher_lease_now launcher_lease_since=$(date +%s)
  fi
  if [ "$launcher_lease_job" = "${LAUNCHER_JOB_ID:-none}" ] ||
      [ $(($(date +%s) - launcher_lease_since)) -ge "$timeout" ]; then
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
    rm -f "$launcher_lease_of_mine"
    exit 93
  fi
  sleep "$poll"
done
echo "$LAUNCHER_JOB_ID 0 $(hostname)" >"$launcher_lease_of_mine"
echo "begin $LAUNCHER_JOB_ID" >>"$LAUNCHER_RUN_DIR/log"
for ((n = 0; n < beats; n++)); do
  sleep "$pause"
  [ ! "$launcher_lease" -ef "$launcher_lease_of_mine" ] || touch -c "$launcher_lease"
done
echo "end $LAUNCHER_JOB_ID" >>"$LAUNCHER_RUN_DIR/log"
[ ! "$launcher_lease" -ef "$launcher_lease_of_mine" ] || rm -f "$launcher_lease"
rm -f "$launcher_lease_of_mine"
"""


def main(kind: str, run_dir: str, job: str, poll: str, timeout: str, beats: str, pause: str) -> int:
    """Ends with 93 if another job lives; else it makes so many heartbeats, each after a pause of so many seconds.

    kind: `old`, or `new` for the lease as it is now.
    """
    lease: OldLease | RunLease
    if kind == "old":
        lease = OldLease(Path(run_dir), job, float(poll), float(timeout))
        if not lease.take():
            return 93
    else:
        lease = RunLease(
            run_dir, job, LeaseTimes(float(pause) if int(beats) > 1 else 60.0, float(poll), float(timeout))
        )
        try:
            lease.take()
        except LeaseTaken:
            lease.release()
            return 93
        lease.record(0)
    with open(Path(run_dir, "log"), "a") as log:
        print("begin", job, file=log, flush=True)
        for _ in range(int(beats)):
            time.sleep(float(pause))
            if isinstance(lease, OldLease):
                lease.beat()
        print("end", job, file=log, flush=True)
    lease.release()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
