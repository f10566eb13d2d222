"""One attempt of a run at a time, whatever became of the one before."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import pytest

from launcher.runs import lease_and_locks
from launcher.runs.directory import Run
from launcher.submission import render
from tests.unit.sandbox import DRIVER, SUCCEEDS, Outcome, Sandbox


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    monkeypatch.setattr(lease_and_locks, "POLL", 0.1)
    return Sandbox(tmp_path)


def held(sandbox: Sandbox) -> Path:
    return sandbox.run_dir / "lease"


def test_the_lease_says_who_has_it_and_is_given_back(sandbox: Sandbox) -> None:
    (sandbox.folder / "bin/srun").write_text(f'#!/bin/bash\ncp "$LAUNCHER_LEASE" "$SANDBOX/lease"\n{SUCCEEDS}\n')
    assert sandbox.execute(sandbox.plan()).code == 0
    assert (sandbox.folder / "lease").read_text().split()[:2] == ["7", "0"]
    assert not list(sandbox.run_dir.glob("*lease*"))


def test_a_job_that_starts_again_takes_its_own_lease(sandbox: Sandbox) -> None:
    """As after a requeue: the scheduler never runs a job twice at once."""
    held(sandbox).write_text("7 0 node1\n")
    assert sandbox.execute(sandbox.plan(), job="7").code == 0


def test_the_lease_of_the_dead_is_taken(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_and_locks, "TIMEOUT", 1)
    held(sandbox).write_text("6 0 node1\n")
    outcome = sandbox.execute(sandbox.plan(), job="7")
    assert (outcome.code, outcome.stderr) == (0, "")
    assert not list(sandbox.run_dir.glob("*lease*"))


def test_the_lease_of_the_living_is_not(sandbox: Sandbox) -> None:
    held(sandbox).write_text("6 3 node1\n")
    over = threading.Event()

    def live() -> None:
        while not over.wait(0.3):
            held(sandbox).touch()

    living = threading.Thread(target=live)
    living.start()
    try:
        outcome = sandbox.execute(sandbox.plan(), job="7")
    finally:
        over.set()
        living.join()
    assert outcome.code == 93
    assert "runs already, in job 6 (attempt and host: 3 node1): job 7 ends" in outcome.stderr
    assert not outcome.started
    assert not list((sandbox.run_dir / "attempts").iterdir())
    assert held(sandbox).read_text() == "6 3 node1\n"


def test_jobs_that_start_at_once_run_one_after_the_other(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_and_locks, "TIMEOUT", 6)  # more than one of them holds it, also on a busy machine
    held(sandbox).write_text("dead 0 node1\n")
    log = 'note() { echo "$1 $LAUNCHER_JOB_ID" >>"$SANDBOX/log"; }; note begin; sleep 0.2; note end'
    (sandbox.folder / "bin/srun").write_text(f"#!/bin/bash\n{log}\nexit 1\n")  # what is done is not done again
    script = render.write(Run(sandbox.run_dir), sandbox.plan(), token="token")
    jobs = [threading.Thread(target=sandbox.start, args=(script, {"SLURM_JOB_ID": str(job)})) for job in range(6)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    lines = (sandbox.folder / "log").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["begin", "end"] * 6
    assert [line.split()[1] for line in lines[::2]] == [line.split()[1] for line in lines[1::2]]
    assert len(list((sandbox.run_dir / "attempts").iterdir())) == 6


def test_a_script_that_is_killed_stops_showing_that_it_lives(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_and_locks, "HEARTBEAT", 0.1)
    go = sandbox.folder / "go"
    stand_in = sandbox.folder / "bin/srun"
    stand_in.write_text('#!/bin/bash\ntouch "$SANDBOX/go"\nexec sleep 60\n')
    script = render.write(Run(sandbox.run_dir), sandbox.plan(), token="token")
    environ = {"PATH": f"{sandbox.folder}/bin:/usr/bin:/bin", "SANDBOX": str(sandbox.folder), "SLURM_JOB_ID": "7"}
    job = subprocess.Popen(["bash", str(script)], env=environ, process_group=0)
    try:
        until(go.exists)
        first = held(sandbox).stat().st_mtime_ns
        until(lambda: held(sandbox).stat().st_mtime_ns > first)
    finally:
        job.kill()
        job.wait()
        subprocess.run(["pkill", "-9", "-g", str(job.pid), "sleep"], check=False)
    until(lambda: not subprocess.run(["pgrep", "-g", str(job.pid)], check=False, capture_output=True).stdout)


def test_a_start_of_a_job_that_goes_on_beside_the_next_one_does_not_continue_the_run(sandbox: Sandbox) -> None:
    """Its node was lost for the scheduler, which has started the job again elsewhere."""
    (sandbox.folder / "bin/srun").write_text(
        '#!/bin/bash\ntouch "$SANDBOX/began-$LAUNCHER_ATTEMPT"\n'
        'until [ -e "$SANDBOX/end-$LAUNCHER_ATTEMPT" ]; do sleep 0.05; done\nexit 75\n'
    )
    sandbox.python.write_text(f'{DRIVER}echo "$LAUNCHER_ATTEMPT" >>"$SANDBOX/continued"\n')  # launcher.job.requeue
    script, outcomes = render.write(Run(sandbox.run_dir), sandbox.plan(), token="token"), list[Outcome]()
    starts = [
        threading.Thread(target=lambda: outcomes.append(sandbox.start(script, {"SLURM_JOB_ID": "7"}))) for _ in range(2)
    ]
    for number, start in enumerate(starts):
        start.start()
        until((sandbox.folder / f"began-{number}").exists)
    for number, start in enumerate(starts):
        (sandbox.folder / f"end-{number}").touch()
        start.join()
    assert [outcome.code for outcome in outcomes] == [75, 75]
    assert "attempt 0 has lost the run, whose lease attempt 1 (job 7) holds now" in outcomes[0].stderr
    assert (sandbox.folder / "continued").read_text() == "1\n"
    assert not list(sandbox.run_dir.glob("*lease*"))


def test_an_attempt_that_has_lost_the_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease_and_locks.require()  # outside of a run
    for name, value in (("RUN_DIR", str(tmp_path)), ("ATTEMPT", "2"), ("JOB_ID", "7"), ("LEASE", f"{tmp_path}/lease")):
        monkeypatch.setenv(f"LAUNCHER_{name}", value)
    (tmp_path / "lease").write_text("7 2 node1\n")
    lease_and_locks.require()
    (tmp_path / "lease").write_text("7 3 node2\n")
    with pytest.raises(
        lease_and_locks.LeaseLost, match=r"attempt 2 has lost the run, whose lease attempt 3 \(job 7\) holds now"
    ):
        lease_and_locks.require()
    (tmp_path / "lease").unlink()
    with pytest.raises(lease_and_locks.LeaseLost, match="nobody holds"):
        lease_and_locks.require()


def test_where_there_are_no_hard_links_an_attempt_holds_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / ".lease-7-1234"
    own.write_text("7 2 node1\n")
    for name, value in (("RUN_DIR", str(tmp_path)), ("ATTEMPT", "2"), ("JOB_ID", "7"), ("LEASE", str(own))):
        monkeypatch.setenv(f"LAUNCHER_{name}", value)
    lease_and_locks.require()


def until(condition: object, timeout: float = 20) -> None:
    give_up = time.monotonic() + timeout
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < give_up
        time.sleep(0.05)
