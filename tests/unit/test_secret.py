"""Values of secrets are in no file of a run and in nothing that is shown, and still reach its ranks."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from launcher import public, secret, submit
from launcher.backends.pbs_query import PBS
from launcher.backends.slurm_query import Slurm
from launcher.cli.submit import show
from launcher.config import Scheduler
from launcher.errors import ConfigError, SubmissionError
from launcher.node import pbs_task
from launcher.plan import JobPlan
from launcher.runs import Run
from launcher.submit_sweep import Wanted, prepare_sweep, submit_sweep
from launcher.sweeps import Sweep
from tests.unit.plans import make_config
from tests.unit.sandbox import STAND_IN

BACKENDS = (Scheduler.local, Scheduler.slurm, Scheduler.pbs)
VALUES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=30).map(
    lambda text: f"{text}-4f7a0c92"  # or it is one of the words that any script has
)


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        *(("HF_TOKEN", True), ("wandb_api_key", True), ("AWS_SECRET_ACCESS_KEY", True), ("PGPASSWORD", True)),
        *(("TOKENIZERS_PARALLELISM", False), ("KEYBOARD", False), ("PATH", False), ("SSH_AUTH_SOCK", False)),
        *(("max_tokens", False), ("tokenizer", False), ("num_tokens", False), ("private_key", True)),
        *(("LAUNCHER_SECRETS_DIR", False), ("GITHUB_PAT", True), ("OPENAI_APIKEY", True), ("DB_PASSWD", True)),
    ],
)
def test_which_names_are_secret(name: str, hidden: bool) -> None:
    assert public.secret(name) is hidden


class Submitted:
    """A run or sweep that was submitted with secrets in the environment and in the profile; it never ran."""

    def __init__(self, folder: Path, scheduler: Scheduler, mine: str, profiles: str, points: int = 0) -> None:
        self.folder, self.environment = folder, dict[str, str]()
        self.python = folder / "bin/python"
        (folder / "bin").mkdir()
        for stand_in in (self.python, folder / "bin/srun"):
            stand_in.write_text(STAND_IN)
            stand_in.chmod(0o700)
        cluster = {"scheduler": scheduler, "check": False, "environment": {"API_KEY": profiles, "PLAIN": "plain"}}
        config = make_config(cluster=cluster, runs_dir=str(folder / "runs"), run_id=None if points else "run-1")
        resolved = {"cluster": {"environment": dict(cluster["environment"])}}  # type: ignore[call-overload]
        words = [f"cluster.environment.API_KEY={profiles}", "nodes=1"]
        with self._stand_ins(mine):
            if points:
                wanted = [Wanted((*words, f"seed={number}"), config, resolved) for number in range(points)]
                prepared_sweep = prepare_sweep(wanted, words)
                self.plan: JobPlan = prepared_sweep.plans[0]
                submit_sweep(prepared_sweep)
                self.shown = ""
                return
            prepared = submit.prepare(config)
            self.plan = prepared.plan
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                show(prepared)
            self.shown = shown.getvalue() + repr(prepared)
            submit.submit(prepared, resolved, words)

    @contextlib.contextmanager
    def _stand_ins(self, mine: str) -> Iterator[None]:
        environ = {"HF_TOKEN": mine, "LAUNCHER_SECRETS_DIR": str(self.folder / "own"), "LAUNCHER_RUNS_DIR": "/nowhere"}
        changes: dict[str, Any] = {
            "launcher.submit.require_commands": lambda _: None,
            "launcher.submit_sweep.require_commands": lambda _: None,
            "launcher.submit_sweep.start_here": lambda _: self.environment.update(os.environ),
            "launcher.submit.default_runs_dir": lambda: self.folder / "runs", "sys.executable": str(self.python),
            "launcher.submit_sweep.default_runs_dir": lambda: self.folder / "runs",
            "launcher.submit.facts_of_here": lambda _: {}, "launcher.submit_sweep.facts_of_here": lambda _: {},
        }  # fmt: skip

        def taken(_: object, script: str, environment: dict[str, str], *options: str) -> str:
            self.environment = dict(environment)
            return "7.srv"

        def begun(words: list[str], *, env: dict[str, str], **_: Any) -> mock.Mock:
            self.environment = dict(env)
            return mock.Mock(pid=os.getpid())

        with contextlib.ExitStack() as stack:
            for name, value in changes.items():
                stack.enter_context(mock.patch(name, value))
            stack.enter_context(mock.patch.object(Slurm, "submit", taken))
            stack.enter_context(mock.patch.object(PBS, "submit", taken))
            for kind in (Slurm, PBS):
                stack.enter_context(mock.patch.object(kind, "max_array_size", lambda *_: None))
            stack.enter_context(mock.patch("launcher.backends.local.subprocess.Popen", begun))
            stack.enter_context(mock.patch.dict(os.environ, environ))
            yield

    def texts(self) -> Iterator[tuple[Path, bytes]]:
        for path in (self.folder / "runs").rglob("*"):
            if path.is_file():
                yield path, path.read_bytes()

    def require_nothing_of(self, *values: str) -> None:
        assert len(list(self.texts())) > 3
        for value in values:
            forms = {value.encode(), json.dumps(value)[1:-1].encode()}
            for path, text in self.texts():
                assert not any(form in text for form in forms), path
            assert value not in self.shown


@pytest.mark.parametrize("points", [0, 3])
@pytest.mark.parametrize("scheduler", BACKENDS)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VALUES, VALUES)
@example('it\'s a $(secret) \\ "value"', "päss wörd & more")
def test_no_file_of_a_run_and_nothing_that_is_shown_has_the_value_of_a_secret(
    scheduler: Scheduler, points: int, mine: str, profiles: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Submitted(Path(folder), scheduler, mine, profiles, points)
        run.require_nothing_of(mine, profiles)
        if scheduler is not Scheduler.pbs:  # from a file; the others hand it on
            assert (run.environment["HF_TOKEN"], run.environment["API_KEY"]) == (mine, profiles)


@pytest.mark.parametrize("scheduler", BACKENDS)
def test_a_secret_reaches_the_ranks_and_its_file_goes_with_the_run(tmp_path: Path, scheduler: Scheduler) -> None:
    mine, profiles = 'it\'s $(mine) \\ "x"', "päss wörd"
    run = Submitted(tmp_path, scheduler, mine, profiles)
    kept = list((tmp_path / "own").rglob("*.sh"))
    assert [path.stat().st_mode & 0o777 for path in kept] == ([0o600] if scheduler is Scheduler.pbs else [])
    assert all(path.parent.stat().st_mode & 0o777 == 0o700 for path in kept)
    given = {} if scheduler is Scheduler.pbs else run.environment
    done = subprocess.run(
        ["bash", str(tmp_path / "runs/run-1/script.sh")], cwd=tmp_path, capture_output=True, text=True, timeout=30,
        check=False, env={**given, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SANDBOX": str(tmp_path),
                          "HOME": str(tmp_path), "LAUNCHER_JOB_ID": "7", "PBS_JOBID": "7.srv"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    ranks = dict(pair.split("=", 1) for pair in (tmp_path / "environment").read_text().split("\0") if pair)
    assert (ranks["HF_TOKEN"], ranks["API_KEY"], ranks["PLAIN"]) == (mine, profiles, "plain")
    assert not list((tmp_path / "own").rglob("*.sh"))
    run.require_nothing_of(mine, profiles)


def test_a_secret_that_did_not_reach_the_job_is_told_by_its_name(tmp_path: Path) -> None:
    Submitted(tmp_path, Scheduler.slurm, "12345678", "87654321")
    done = subprocess.run(
        ["bash", str(tmp_path / "runs/run-1/script.sh")], cwd=tmp_path, capture_output=True, text=True, timeout=30,
        check=False, env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SANDBOX": str(tmp_path), "HOME": "/"},
    )  # fmt: skip
    assert done.returncode == 93
    assert "launcher: the secret API_KEY did not reach" in done.stderr


def test_a_record_says_how_to_give_the_secret_again(tmp_path: Path) -> None:
    Submitted(tmp_path, Scheduler.slurm, "12345678", "87654321")
    record = Run(tmp_path / "runs/run-1").record()
    assert record["overrides"] == ["cluster.environment.API_KEY=${oc.env:API_KEY}", "nodes=1"]
    assert record["config"]["cluster"]["environment"] == {"API_KEY": "(secret)", "PLAIN": "plain"}
    assert record["plan"]["secrets"] == ["API_KEY"]
    with pytest.raises(SubmissionError, match="API_KEY: secrets are in no record, so set it in this shell"):
        secret.require(["API_KEY"], {})


def test_a_sweeps_points_have_files_of_their_own_on_pbs(tmp_path: Path) -> None:
    Submitted(tmp_path, Scheduler.pbs, "12345678", "87654321", points=3)
    sweep = next(path.parent for path in (tmp_path / "runs").glob("*/sweep.json")).resolve()
    files = [secret.file_of(str(Sweep(sweep).run(number).path), str(tmp_path / "own")) for number in range(3)]
    assert sorted((tmp_path / "own").rglob("*.sh")) == sorted(files)
    assert f'LAUNCHER_SECRETS_FILE={files[0].parent}/"$element".sh' in next(sweep.glob("arrays/*.sh")).read_text()


def test_files_of_runs_that_are_over_do_not_stay(tmp_path: Path) -> None:
    base, states = tmp_path / "own", {}
    for name in ("gone", "cancelled", "done", "stopped", "waiting"):
        run_dir = tmp_path / "runs" / name
        states[name] = secret.file_of(str(run_dir), str(base))
        secret.write(f"# {run_dir}\nexport A_KEY=x\n", states[name])
        if name != "gone":
            run = Run.create(run_dir)
        if name == "cancelled":
            run.mark("cancelled")
        if name in ("done", "stopped"):
            (run_dir / "attempts/0/events").mkdir(parents=True)
            ended = {"time": 1.0, "event": "ended", "code": 75 if name == "stopped" else 0}
            (run_dir / "attempts/0/events/script.jsonl").write_text(json.dumps(ended) + "\n")
    secret.prune(base)
    assert {name for name, path in states.items() if path.exists()} == {"stopped", "waiting"}


@pytest.mark.parametrize(
    ("word", "public"),
    [
        ("+cluster.environment.API_KEY=abcdefgh", "+cluster.environment.API_KEY=${oc.env:API_KEY}"),
        ("cluster.environment.API_KEY=${oc.env:MINE}", "cluster.environment.API_KEY=${oc.env:MINE}"),
        ("cluster.environment={API_KEY: abcdefgh, B: 1}", "cluster.environment={API_KEY: ${oc.env:API_KEY}, B: 1}"),
        ("cluster.environment.PLAIN=abcdefg", "cluster.environment.PLAIN=abcdefg"),
        ("workload.lr=0.1", "workload.lr=0.1"),
    ],
)
def test_overrides_refer_to_the_environment(word: str, public: str) -> None:
    assert secret.public_overrides([word], {"API_KEY": "abcdefgh"}) == [public]


def test_a_secret_where_it_cannot_be_left_out_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"workload\.kwargs\.key has the value of WANDB_API_KEY"):
        secret.require_absent({"workload": {"kwargs": {"key": "x-0123456789"}}}, {"WANDB_API_KEY": "0123456789"})
    secret.require_absent({"a": "/home/me/key", "b": "yes"}, {"A_KEY": "/home/me/key", "B_KEY": "yes"})


def test_what_tasks_of_pbs_read_is_in_no_file_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_SECRETS_DIR", str(tmp_path / "own"))
    (tmp_path / "tasks").mkdir()
    handed = pbs_task.hand_on(tmp_path / "tasks", {"HF_TOKEN": "o'ne", "PLAIN": "two"})
    assert "o'ne" not in "".join(path.read_text() for path in (tmp_path / "tasks").iterdir())
    done = subprocess.run(
        ["bash", "-c", f'{handed.shell}\necho "$HF_TOKEN $PLAIN"'], capture_output=True, text=True, check=True, env={}
    )
    assert done.stdout == "o'ne two\n"
    handed.remove()
    assert not list(tmp_path.rglob("*.sh"))
    (tmp_path / "file").touch()
    monkeypatch.setenv("LAUNCHER_SECRETS_DIR", str(tmp_path / "file"))  # a home that cannot be written to
    assert "/given" in pbs_task.hand_on(tmp_path / "tasks", {"HF_TOKEN": "x", "LAUNCHER_SECRETS_FILE": "/given"}).shell
