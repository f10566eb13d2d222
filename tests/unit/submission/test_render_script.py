"""What the generated shell does: exit codes, attempts, set-up lines, the environment of the ranks."""

from __future__ import annotations

import os
import re
import shutil
import socket
from pathlib import Path

import pytest

from launcher.paths import own_module
from launcher.runs import event_files
from launcher.runs.directory import Run
from launcher.runs.job_file import NAME
from launcher.submission import render
from tests.unit.sandbox import BEGINS, DRIVER, Sandbox

HOST = socket.gethostname()


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


@pytest.mark.parametrize(
    ("scheduler", "code"),
    [*(("slurm", code) for code in (0, 1, 75, 93, 137)), *((each, 75) for each in ("pbs", "allocation", "local"))],
)
def test_the_script_ends_as_the_ranks_end_and_writes_it_down(sandbox: Sandbox, scheduler: str, code: int) -> None:
    outcome = sandbox.execute(sandbox.plan(cluster={"scheduler": scheduler}), code=code)
    assert outcome.code == code
    assert outcome.events() == [
        {"event": "started", "job": "7", "host": HOST},
        {"event": "ended", "code": code},
    ]
    assert outcome.stderr == ""


@pytest.mark.parametrize(
    ("scheduler", "started"),
    [
        ("slurm", ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=3", "--unbuffered",
                   "--wait=0", "--kill-on-bad-exit=1"]),
        ("allocation", ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=3", "--unbuffered",
                        "--wait=0", "--kill-on-bad-exit=1", "--overlap"]),
        ("pbs", ["py thon", *own_module("launcher.schedulers.tasks"), "--pbsdsh", "2", "1", "35"]),
        ("local", ["py thon", *own_module("launcher.schedulers.tasks"), "2", "1", "35"]),
    ],
)  # fmt: skip
def test_the_ranks_are_started_as_the_plan_says(sandbox: Sandbox, scheduler: str, started: list[str]) -> None:
    plan = sandbox.plan(cluster={"scheduler": scheduler}, nodes=2, min_nodes=2, cpus_per_proc=3, launch={"grace": 30})
    outcome = sandbox.execute(plan)
    node = [str(sandbox.python), "-u", *own_module("launcher.agent"), str(sandbox.run_dir)]
    assert outcome.arguments == [*started, *node]
    assert outcome.cwd == str(sandbox.work)


def test_each_start_is_the_next_attempt(sandbox: Sandbox) -> None:
    for attempt, code in enumerate((75, 1, 0)):
        outcome = sandbox.execute(sandbox.plan(), code=code, job=f"{attempt + 10}")
        assert outcome.environment["LAUNCHER_ATTEMPT"] == str(attempt)
        started, ended = outcome.events(attempt)
        assert (started["job"], ended["code"]) == (f"{attempt + 10}", code)
    assert sorted(path.name for path in (sandbox.run_dir / "attempts").iterdir()) == ["0", "1", "2"]


@pytest.mark.parametrize("missing", ["the run directory", "attempts", "a file in its place"])
def test_a_run_directory_that_cannot_be_written_to_is_told_and_not_tried_again(sandbox: Sandbox, missing: str) -> None:
    script = render.write(Run(sandbox.run_dir), sandbox.plan(), token="token")
    (sandbox.run_dir / "attempts").rmdir()
    if missing == "a file in its place":
        (sandbox.run_dir / "attempts").touch()
    if missing == "the run directory":
        script = script.rename(sandbox.folder / "script.sh")
        shutil.move(sandbox.run_dir / NAME, job := sandbox.folder / NAME)
        script.write_text(script.read_text().replace(f"{sandbox.run_dir}/{NAME}", str(job)))
        shutil.rmtree(sandbox.run_dir)
    outcome = sandbox.start(script, {"SLURM_JOB_ID": "7"})
    assert outcome.code == 93
    what = sandbox.run_dir if missing == "the run directory" else sandbox.run_dir / "attempts"
    assert f"{HOST} cannot write to {what}: is it on a file system that all nodes share?" in outcome.stderr
    assert not outcome.started


def test_a_working_directory_that_is_not_there_is_not_tried_again(sandbox: Sandbox) -> None:
    sandbox.pauses()
    outcome = sandbox.execute(sandbox.plan(workdir=str(sandbox.folder / "gone")))
    assert (outcome.code, outcome.started) == (93, False)
    assert "gone" in outcome.stderr
    assert outcome.events()[-2:] == [
        {
            "event": "fault", "code": "no_folder", "host": HOST, "ends_with": 93,
            "error": f"its working folder {sandbox.folder}/gone cannot be entered there: submit in a folder that all "
            "nodes share",
        },
        {"event": "ended", "code": 93},
    ]  # fmt: skip


@pytest.mark.parametrize("late", ["work", "runs/run-1/environment.sh"])
def test_what_a_file_server_shows_late_is_waited_for(sandbox: Sandbox, late: str) -> None:
    script = render.write(Run(sandbox.run_dir), sandbox.plan(cluster={"scheduler": "pbs"}), token="token")
    (sandbox.run_dir / "environment.sh").write_text("export FROM_SUBMITTER=yes\n")
    (sandbox.folder / late).rename(sandbox.folder / "late")
    sandbox.pauses(f'mv "$SANDBOX/late" "$SANDBOX/{late}"')
    outcome = sandbox.start(script, {"PBS_JOBID": "8.srv"})
    assert (outcome.code, outcome.started) == (0, True), outcome.stderr
    assert (outcome.cwd, outcome.environment["FROM_SUBMITTER"]) == (str(sandbox.work), "yes")


def test_what_the_script_makes_is_private_and_what_the_ranks_make_is_the_users_choice(sandbox: Sandbox) -> None:
    outcome = sandbox.execute(sandbox.plan(umask=0o027))
    assert outcome.umask == "0027"
    attempt = sandbox.run_dir / "attempts/0"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (attempt, *attempt.rglob("*"))}
    private = {"0": 0o700, "events": 0o700, "script.jsonl": 0o600, "node-0.jsonl": 0o600}
    assert modes == {**private, "exit_code": 0o640}


def test_set_up_lines_are_shell_and_run_before_the_ranks(sandbox: Sandbox) -> None:
    setup = ("export A='one two'", "B=$A-more\nexport B", "f() { echo; }  # a comment", "cd ..", ": || false")
    outcome = sandbox.execute(sandbox.plan(cluster={"setup": setup, "environment": {"A": "the profile's"}}))
    assert outcome.code == 0
    assert (outcome.environment["A"], outcome.environment["B"]) == ("the profile's", "one two-more")
    assert outcome.cwd == str(sandbox.folder)


@pytest.mark.parametrize(
    ("setup", "line", "code"),
    [
        (("false",), 1, 1),
        ((":", "(exit 7)", "touch reached"), 2, 7),
        (("no-such-command-at-all",), 1, 127),
        (("set -e", "false", "touch reached"), 2, 1),
    ],
)
def test_a_set_up_line_that_fails_ends_the_attempt_for_good(
    sandbox: Sandbox, setup: tuple[str, ...], line: int, code: int
) -> None:
    outcome = sandbox.execute(sandbox.plan(cluster={"setup": setup}))
    assert outcome.code == 93
    assert outcome.events() == [
        {"event": "started", "job": "7", "host": HOST},
        {
            "event": "setup_failed", "line": line, "message": f"set-up line {line} of cluster=here failed",
            "code": code, "host": HOST,
        },
        {"event": "ended", "code": 93},
    ]  # fmt: skip
    assert f"launcher: set-up line {line} of cluster=here failed on {HOST} (exit {code})" in outcome.stderr
    assert not outcome.started
    assert not (sandbox.work / "reached").exists()


@pytest.mark.parametrize(("line", "code"), [("exit 3", 3), ("exit 0", 0), ("set -u; echo $NO_SUCH_NAME", 1)])
def test_a_set_up_line_that_ends_the_shell_is_a_failure(sandbox: Sandbox, line: str, code: int) -> None:
    outcome = sandbox.execute(sandbox.plan(cluster={"setup": (":", line)}))
    assert (outcome.code, outcome.started) == (93, False)
    failed, ended = outcome.events()[-2:]
    assert (failed["event"], failed["line"], failed.get("code", 0), ended["code"]) == ("setup_failed", 0, code, 93)
    assert f"a set-up line, which ended the shell, failed on {HOST} (exit {code})" in outcome.stderr


def test_a_set_up_line_may_change_the_umask(sandbox: Sandbox) -> None:
    assert sandbox.execute(sandbox.plan(cluster={"setup": ("umask 002",)}, umask=0o077)).umask == "0002"


@pytest.mark.parametrize(
    ("strict", "code"),
    [("set -e", 75), ("set -u", 75), *(("set -euo pipefail", code) for code in (0, 75)),
     ("set -o errexit; shopt -s nullglob", 75)],
)  # fmt: skip
def test_a_strict_shell_of_a_profile_does_not_lose_how_the_ranks_ended(
    sandbox: Sandbox, strict: str, code: int
) -> None:
    outcome = sandbox.execute(
        sandbox.plan(cluster={"setup": (strict,), "environment": {"A": "1", "B": None}}, code_root="/c"), code=code
    )
    assert outcome.code == code
    assert outcome.events()[-1] == {"event": "ended", "code": code}


@pytest.mark.parametrize("kind", ["slurm", "pbs", "local"])
def test_a_signal_ends_the_ranks_and_their_end_is_still_written_down(sandbox: Sandbox, kind: str) -> None:
    for stand_in in (sandbox.folder / "bin/srun", sandbox.python):
        stand_in.write_text(f"{DRIVER}{BEGINS}\nkill -TERM $PPID\nexit 143\n")
    outcome = sandbox.execute(sandbox.plan(cluster={"scheduler": kind}))
    assert outcome.code == 143
    assert outcome.events()[-1] == {"event": "ended", "code": 143}


@pytest.mark.parametrize(("code", "ended"), [(137, 75), (254, 75), (255, 255), (1, 1)])
def test_a_run_goes_on_after_all_agents_were_killed_by_a_signal(sandbox: Sandbox, code: int, ended: int) -> None:
    (sandbox.run_dir / "checkpoints/step-1").mkdir(parents=True)
    sandbox.python.write_text(f"{DRIVER}exit 75\n")  # launcher.job.requeue
    outcome = sandbox.execute(sandbox.plan(checkpoint={"dir": f"{sandbox.run_dir}/checkpoints"}), code=code)
    assert (outcome.code, outcome.events()[-1]) == (ended, {"event": "ended", "code": ended})


@pytest.mark.parametrize(("code", "ended"), [(143, 75), (137, 137)])
def test_a_run_whose_agents_alone_got_sigterm_goes_on_without_a_checkpoint(
    sandbox: Sandbox, code: int, ended: int
) -> None:
    sandbox.python.write_text(f"{DRIVER}exit 75\n")  # launcher.job.requeue
    (sandbox.run_dir / "checkpoints").mkdir()
    outcome = sandbox.execute(sandbox.plan(checkpoint={"dir": f"{sandbox.run_dir}/checkpoints"}), code=code)
    assert (outcome.code, outcome.events()[-1]) == (ended, {"event": "ended", "code": ended})


def test_variables_are_set_and_unset(sandbox: Sandbox) -> None:
    outcome = sandbox.execute(
        sandbox.plan(cluster={"environment": {"SET": "new", "EMPTY": "", "GONE": None}}), SET="old", GONE="x", KEPT="k"
    )
    kept = {name: outcome.environment.get(name) for name in ("SET", "EMPTY", "GONE", "KEPT")}
    assert kept == {"SET": "new", "EMPTY": "", "GONE": None, "KEPT": "k"}


@pytest.mark.parametrize(
    ("scheduler", "before", "threads"),
    [
        *(("slurm", None, "3"), ("slurm", "8", "8"), ("pbs", None, "3")),
        *(("allocation", None, "3"), ("local", None, None)),
    ],
)
def test_a_rank_of_a_job_has_as_many_threads_as_cpus(
    sandbox: Sandbox, scheduler: str, before: str | None, threads: str | None
) -> None:
    environ = {} if before is None else {"OMP_NUM_THREADS": before}
    outcome = sandbox.execute(sandbox.plan(cluster={"scheduler": scheduler}, cpus_per_proc=3), **environ)
    assert outcome.environment.get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(
    ("code_root", "before", "after"),
    [(None, None, None), (None, "/mine", "/mine"), ("/code", None, "/code"), ("/code", "/mine", "/code:/mine")],
)
def test_the_checkout_comes_first_on_the_python_path(
    sandbox: Sandbox, code_root: str | None, before: str | None, after: str | None
) -> None:
    environ = {} if before is None else {"PYTHONPATH": before}
    outcome = sandbox.execute(sandbox.plan(code_root=code_root), **environ)
    assert outcome.environment.get("PYTHONPATH") == after


def test_a_node_that_does_not_see_the_launcher_is_told(sandbox: Sandbox) -> None:
    script = render.write(Run(sandbox.run_dir), sandbox.plan(python="/gone/python"), token="token")
    sandbox.pauses()
    (sandbox.run_dir / "attempts/0").mkdir()
    scontrol = sandbox.folder / "bin/scontrol"
    scontrol.write_text('#!/bin/sh\necho "$@" >>"$SANDBOX/asked"\n')
    scontrol.chmod(0o700)
    outcome = sandbox.start(script, {"SLURM_JOB_ID": "7"})
    assert (outcome.code, outcome.started) == (93, False)
    assert (sandbox.folder / "asked").read_text() == "update JobId=7 Requeue=0\n", "it would be the same again"
    assert f"{HOST} cannot see /gone/python or " in outcome.stderr
    assert outcome.events(1) == [
        {"event": "started", "job": "7", "host": HOST},
        {
            "event": "fault", "code": "unreadable", "host": HOST, "ends_with": 93,
            "error": "it cannot see the launcher, or its Python",
        },
        {"event": "ended", "code": 93},
    ]  # fmt: skip
    assert not event_files.problems(sandbox.run_dir / "attempts/1/events/script.jsonl")
    assert (sandbox.run_dir / "over").exists()  # no further job of a chain begins


def test_an_element_whose_node_does_not_see_the_launcher_is_told(sandbox: Sandbox) -> None:
    (sandbox.run_dir / "3/attempts").mkdir(parents=True)
    sandbox.pauses()
    plan = sandbox.plan(python="/gone/python")
    outcome = sandbox.execute(plan, array="0-9", job="12", SLURM_ARRAY_JOB_ID="9", SLURM_ARRAY_TASK_ID="3")
    assert outcome.code == 93
    events = outcome.events(run_dir=sandbox.run_dir / "3")
    assert [(event["event"], event.get("code")) for event in events] == [
        ("started", None), ("fault", "unreadable"), ("ended", 93)
    ]  # fmt: skip


def test_an_element_of_an_array_has_a_directory_and_a_job_of_its_own(sandbox: Sandbox) -> None:
    for folder in ("3/attempts", "3/submitit"):
        (sandbox.run_dir / folder).mkdir(parents=True)
    outcome = sandbox.execute(
        sandbox.plan(), array="0-9", code=75, job="12", SLURM_ARRAY_JOB_ID="9", SLURM_ARRAY_TASK_ID="3"
    )
    element = sandbox.run_dir / "3"  # what line 4 of its file says
    assert outcome.code == 75
    assert outcome.environment["LAUNCHER_RUN_DIR"] == outcome.arguments[-1] == str(element)
    assert outcome.environment["LAUNCHER_JOB_ID"] == "9_3"
    assert outcome.events(run_dir=element)[0]["job"] == "9_3"
    assert os.readlink(element / "submitit/9_3_submitted.pkl") == "payload.pkl"
    assert os.readlink(element / "output-9_3.log") == str(sandbox.run_dir / "arrays/output-9_3.log")
    assert not list((sandbox.run_dir / "attempts").iterdir())


def test_an_element_of_a_pbs_array_has_a_directory_and_a_job_of_its_own(sandbox: Sandbox) -> None:
    for folder in ("3/attempts", "3/submitit"):
        (sandbox.run_dir / folder).mkdir(parents=True)
    outcome = sandbox.execute(
        sandbox.plan(cluster={"scheduler": "pbs"}),
        array="0-9",
        job="9[3].srv",
        PBS_ARRAY_ID="9[].srv",
        PBS_ARRAY_INDEX="3",
    )
    element = sandbox.run_dir / "3"
    assert outcome.environment["LAUNCHER_RUN_DIR"] == outcome.arguments[-1] == str(element)
    assert outcome.environment["LAUNCHER_JOB_ID"] == "9.srv_3"
    assert os.readlink(element / "submitit/9.srv_3_submitted.pkl") == "payload.pkl"
    assert os.readlink(element / "9[3].srv.OU") == str(sandbox.run_dir / "arrays/9[3].srv.OU")


def test_an_element_that_its_array_does_not_have_ends(sandbox: Sandbox) -> None:
    outcome = sandbox.execute(sandbox.plan(), array="0-9", job="12", SLURM_ARRAY_JOB_ID="9", SLURM_ARRAY_TASK_ID="5")
    assert outcome.code == 93
    assert "cannot find the array element 5 in" in outcome.stderr


def test_a_run_that_is_done_is_not_done_again(sandbox: Sandbox) -> None:
    assert sandbox.execute(sandbox.plan()).code == 0
    again = sandbox.start(sandbox.run_dir / "script.sh", {"SLURM_JOB_ID": "8"})
    assert again.code == 0
    assert "is done already: job 8 ends" in again.stderr
    assert [path.name for path in (sandbox.run_dir / "attempts").iterdir()] == ["0"]


def test_a_pbs_job_takes_over_the_environment_from_its_file(sandbox: Sandbox) -> None:
    outcome = sandbox.execute(
        sandbox.plan(cluster={"scheduler": "pbs", "setup": ("export SEEN=$FROM_SUBMITTER",)}), code=1
    )
    assert (outcome.environment["FROM_SUBMITTER"], outcome.environment["SEEN"]) == ("yes", "yes")
    assert outcome.environment["LAUNCHER_ENVIRONMENT_FILE"] == f"{sandbox.run_dir}/environment.sh"
    (sandbox.run_dir / "environment.sh").unlink()
    sandbox.pauses()
    again = sandbox.start(sandbox.run_dir / "script.sh", {"PBS_JOBID": "8.srv"})
    assert again.code == 93
    assert again.stderr == f"launcher: {HOST} cannot read the run's environment.sh\n"
    assert again.events(1) == [
        {"event": "started", "job": "8.srv", "host": HOST},
        {"event": "ended", "code": 93},
    ]


@pytest.mark.parametrize(("given", "job"), [({}, "7"), ({"LAUNCHER_JOB_ID": "local-1"}, "local-1")])
def test_the_job_finds_its_payload_under_its_own_id(sandbox: Sandbox, given: dict[str, str], job: str) -> None:
    outcome = sandbox.execute(sandbox.plan(), **given)
    assert outcome.environment["LAUNCHER_JOB_ID"] == job
    assert os.readlink(sandbox.run_dir / f"submitit/{job}_submitted.pkl") == "payload.pkl"


@pytest.mark.parametrize("scheduler", ["slurm", "pbs", "allocation", "local"])
def test_variables_of_the_users_own_are_left_alone(sandbox: Sandbox, scheduler: str) -> None:
    plan = sandbox.plan(cluster={"scheduler": scheduler})
    assigned = set(
        re.findall(r"^ *(?:\w+=\S+ |until |export )*([a-z]\w*)=", render.script(plan, token="t"), re.MULTILINE)
    )
    assert not {name for name in assigned if not name.startswith("launcher_")}
