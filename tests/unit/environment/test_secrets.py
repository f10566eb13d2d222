"""Values of secrets are in no file of a run and in nothing that is shown, and still reach its ranks."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig

from launcher import redaction
from launcher.cli.submit import show
from launcher.config import compose
from launcher.config.compose_points import Composer
from launcher.config.schema import Env, Pool
from launcher.environment import secrets
from launcher.errors import ConfigError, SubmissionError
from launcher.plan.plan import JobPlan
from launcher.runs.directory import Run
from launcher.runs.sweep_directory import Sweep
from launcher.schedulers.pbs import task_starters
from launcher.schedulers.pbs.client import PBS
from launcher.schedulers.slurm.client import Slurm
from launcher.submission import prepare, resume, submit
from launcher.sweeps.prepare import RequestedPoint, prepare_sweep
from launcher.sweeps.submit import submit_sweep
from tests.unit.plans import make_config, plan_of
from tests.unit.sandbox import STAND_IN, Sandbox

A_DAY_AGO = time.time() - 2 * secrets.PRUNED_AFTER
BACKENDS = ("local", "slurm", "pbs")
VALUES = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=30).map(
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
    assert redaction.is_secret(name) is hidden


@pytest.mark.parametrize(
    ("more", "name", "hidden"),
    [
        *(([], "HF_TOKEN", True), (["PIN"], "HF_TOKEN", True), (["PIN"], "PIN", True), (["PIN"], "PINS", False)),
        *((["!HF_*"], "HF_TOKEN", False), (["!HF_*"], "API_TOKEN", True), (["MAX_PIN"], "MAX_PIN", True)),
    ],
)
def test_names_of_a_users_own_are_added(more: list[str], name: str, hidden: bool) -> None:
    plan = plan_of(env=Env(secrets=more), cluster={"environment": {name: "value"}})
    assert plan.secret_variables == ((name,) if hidden else ())
    assert redaction.is_secret(name, plan.env.secrets) is hidden


class Submitted:
    """A run or sweep that was submitted with secrets in the environment and in the profile; it never ran."""

    def __init__(self, folder: Path, scheduler: str, mine: str, profiles: str, points: int = 0) -> None:
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
                wanted = [RequestedPoint((*words, f"seed={number}"), config, resolved) for number in range(points)]
                prepared_sweep = prepare_sweep(wanted, words)
                self.plan: JobPlan = prepared_sweep.plans[0]
                submit_sweep(prepared_sweep)
                self.shown = ""
                return
            prepared = prepare.prepare(config)
            self.plan = prepared.plan
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                show(prepared)
            self.shown = shown.getvalue() + repr(prepared)
            submit.submit(prepared, resolved, words)

    @contextlib.contextmanager
    def _stand_ins(self, mine: str) -> Iterator[None]:
        environ = {"HF_TOKEN": mine, "LAUNCHER_SECRETS_DIR": str(self.folder / "own"), "LAUNCHER_RUNS_DIR": "/nowhere"}
        changes: dict[str, Any] = {
            "launcher.submission.submit.require_commands": lambda _: None,
            "launcher.sweeps.submit.require_commands": lambda _: None,
            "launcher.sweeps.submit.start_local_runner": lambda _: self.environment.update(os.environ),
            "launcher.submission.submit.default_runs_dir": lambda: self.folder / "runs",
            "sys.executable": str(self.python),
            "launcher.sweeps.submit.default_runs_dir": lambda: self.folder / "runs",
            "launcher.submission.submit.facts_of_here": lambda _: {},
            "launcher.sweeps.submit.facts_of_here": lambda _: {},
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
            stack.enter_context(mock.patch("launcher.schedulers.executor.subprocess.Popen", begun))
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
    scheduler: str, points: int, mine: str, profiles: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Submitted(Path(folder), scheduler, mine, profiles, points)
        run.require_nothing_of(mine, profiles)
        got = {name: run.environment.get(name) for name in ("HF_TOKEN", "API_KEY")}
        if scheduler == "pbs":  # from a file; qsub itself may be told to hand its environment on (-V)
            assert got == {"HF_TOKEN": None, "API_KEY": None}
        else:
            assert got == {"HF_TOKEN": mine, "API_KEY": profiles}


@pytest.mark.parametrize("scheduler", BACKENDS)
def test_a_secret_reaches_the_ranks_and_its_file_goes_with_the_run(tmp_path: Path, scheduler: str) -> None:
    mine, profiles = 'it\'s $(mine) \\ "x"', "päss wörd"
    run = Submitted(tmp_path, scheduler, mine, profiles)
    kept = list((tmp_path / "own").rglob("*.sh"))
    assert [path.stat().st_mode & 0o777 for path in kept] == ([0o600] if scheduler == "pbs" else [])
    assert all(path.parent.stat().st_mode & 0o777 == 0o700 for path in kept)
    given = {} if scheduler == "pbs" else run.environment
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
    Submitted(tmp_path, "slurm", "12345678", "87654321")
    done = subprocess.run(
        ["bash", str(tmp_path / "runs/run-1/script.sh")], cwd=tmp_path, capture_output=True, text=True, timeout=30,
        check=False, env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SANDBOX": str(tmp_path), "HOME": "/"},
    )  # fmt: skip
    assert done.returncode == 93
    assert "launcher: the secret API_KEY did not reach" in done.stderr


def test_a_record_says_how_to_give_the_secret_again(tmp_path: Path) -> None:
    Submitted(tmp_path, "slurm", "12345678", "87654321")
    record = Run(tmp_path / "runs/run-1").record()
    assert record["overrides"] == ["cluster.environment.API_KEY=${oc.env:API_KEY}", "nodes=1"]
    assert record["config"]["cluster"]["environment"] == {"API_KEY": "(secret)", "PLAIN": "plain"}
    assert record["plan"]["secret_variables"] == ["API_KEY"]
    with pytest.raises(SubmissionError, match="API_KEY: secrets are in no record: export them"):
        secrets.require(["API_KEY"], {})


def test_a_secret_of_a_pool_reaches_the_job_and_no_record_has_that_of_any(tmp_path: Path) -> None:
    variables = {"gpu": {"API_KEY": "12345678", "PLAIN": 1}, "cpu": {"API_KEY": "87654321", "MY_TOKEN": None}}
    pools = {name: Pool(environment=each) for name, each in variables.items()}
    config = make_config(cluster={"check": False, "partition": "gpu", "pools": pools}, runs_dir=str(tmp_path))
    resolved = {"cluster": {"pools": {name: {"environment": each} for name, each in variables.items()}}}
    prepared = prepare.prepare(config)
    assert (prepared.secrets, prepared.plan.secret_variables) == ({"API_KEY": "12345678"}, ("API_KEY",))
    recorded, _ = submit.redacted_record(prepared, resolved, [])
    assert {name: pool["environment"] for name, pool in recorded["cluster"]["pools"].items()} == {
        "gpu": {"API_KEY": "(secret)", "PLAIN": 1}, "cpu": {"API_KEY": "(secret)", "MY_TOKEN": None},
    }  # fmt: skip
    sweep = prepare_sweep([RequestedPoint(("seed=1",), config, resolved)], ["seed=1"])
    assert (sweep.secrets, sweep.points[0].resolved) == (prepared.secrets, recorded)


def test_a_point_that_runs_again_gets_the_secret_of_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "abc")
    resume.register()
    pools = "+cluster.pools={cpu: {environment: {API_KEY: x}}, gpu: {environment: {API_KEY: '${oc.env:MY_TOKEN}'}}}"
    assert compose.variables(["workload=p2p", "cluster=slurm", pools], ["API_KEY"], ["gpu"]) == {"API_KEY": "abc"}


def test_a_sweeps_points_have_files_of_their_own_on_pbs(tmp_path: Path) -> None:
    Submitted(tmp_path, "pbs", "12345678", "87654321", points=3)
    sweep = next(path.parent for path in (tmp_path / "runs").glob("*/sweep.json")).resolve()
    files = [secrets.file_of(str(Sweep(sweep).run(number).path), str(tmp_path / "own")) for number in range(3)]
    assert sorted((tmp_path / "own").rglob("*.sh")) == sorted(files)
    (job,) = (json.loads(path.read_text()) for path in sweep.glob("arrays/*.job.json"))
    assert job["secrets_file"] == str(files[0].parent)


@pytest.mark.parametrize(
    ("run_id", "made", "code", "after", "kept"),
    [
        ("waits", "waits", None, 0, True),
        ("done", "done", 0, 1, False),
        ("failed", "failed", 1, 1, False),
        ("failed-and-submitted-again", "failed-and-submitted-again", 1, -1, True),
        ("stopped", "stopped", 75, 1, True),
        ("cancelled", "cancelled", None, 0, False),
        ("gone", "", None, 0, False),
        ("lr-1/3", "", None, 0, False),  # a whole sweep is gone
        ("lr-1/3", "lr-1", None, 0, False),
        ("of-another-cluster", None, None, 0, True),
        ("lr-1/3", None, None, 0, True),
    ],
)
def test_files_of_runs_that_are_over_do_not_stay(
    tmp_path: Path, run_id: str, made: str | None, code: int | None, after: float, kept: bool
) -> None:
    """`after`: seconds from when the file was written to the run's end."""
    base, run_dir = tmp_path / "own", tmp_path / "runs" / run_id
    path = secrets.file_of(str(run_dir), str(base))
    secrets.write(f"# {run_dir}\nexport A_KEY=x\n", path)
    os.utime(path, (A_DAY_AGO, A_DAY_AGO))
    if made is not None:
        (tmp_path / "runs" / made).mkdir(parents=True)
    if run_id == "cancelled":
        Run(run_dir).mark("cancelled")
    if code is not None:
        event = {"time": path.stat().st_mtime + after, "event": "ended", "code": code}
        (run_dir / "attempts/0/events").mkdir(parents=True)
        (run_dir / "attempts/0/events/script.jsonl").write_text(json.dumps(event) + "\n")
    secrets.prune(base)
    assert (path.exists(), path.parent.exists()) == (kept, kept)


def test_a_submission_looks_at_few_of_the_files_of_waiting_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []
    monkeypatch.setattr(secrets, "LOOKED_AT", 10)
    monkeypatch.setattr(secrets, "_over", lambda run_dir, _: looked.append(run_dir))
    sweep, base = tmp_path / "runs/lr-1", tmp_path / "own"
    for number in range(40):
        path = secrets.file_of(str(sweep / str(number)), str(base))
        secrets.write(f"# {sweep}/{number}\n", path)
        if number < 30:
            os.utime(path, (A_DAY_AGO, A_DAY_AGO))
    for array in range(3):
        secrets.hand_over([str(sweep / f"5{array}")], {"A_KEY": "x"}, "", str(base))
    assert 0 < len(looked) <= 10
    assert not {str(sweep / str(number)) for number in range(30, 40)} & {str(each) for each in looked}


def test_a_folder_that_another_submission_removes_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked_at(folder: Path) -> None:
        if folder.name == "runs" and not list(tmp_path.glob("removed")):
            folder.rmdir()
            (tmp_path / "removed").touch()

    monkeypatch.setattr(secrets, "require_private", looked_at)
    secrets.write("export A_KEY=x\n", tmp_path / "own/runs/run-1.sh")
    assert (tmp_path / "own/runs/run-1.sh").read_text() == "export A_KEY=x\n"


@pytest.mark.parametrize("folder", ["own", "own/{runs}"])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, folder: str) -> None:
    base, run_dir = tmp_path / "own", str(tmp_path / "runs/run-1")
    runs = secrets.file_of(run_dir, str(base)).parent
    runs.mkdir(parents=True)
    (runs / "run-2.sh").touch()
    (tmp_path / folder.format(runs=runs.name)).chmod(0o770)
    with pytest.raises(SubmissionError, match=r"others can write to .*LAUNCHER_SECRETS_DIR"):
        secrets.hand_over([run_dir], {"A_KEY": "x"}, "export A_KEY=x\n", str(base))


@pytest.mark.parametrize(
    ("code", "tells", "kept"),
    [(0, "", False), (1, "", False), (75, "", False), (0, "x", False), (75, "x", True), (143, "x", True)],
)
def test_a_job_that_pbs_told_to_stop_keeps_its_secrets_for_its_next_start(
    tmp_path: Path, code: int, tells: str, kept: bool
) -> None:
    sandbox = Sandbox(tmp_path)
    plan = sandbox.plan(cluster={"scheduler": "pbs"}, secrets_dir=str(tmp_path / "own"))
    path = secrets.file_of(plan.run_dir, str(tmp_path / "own"))
    secrets.write("export HF_TOKEN=x\n", path)
    assert sandbox.execute(plan, code=code, STAND_IN_TELLS=tells).environment["HF_TOKEN"] == "x"
    assert path.exists() is kept


@pytest.mark.parametrize("scheduler", ["slurm", "pbs", "allocation", "local"])
def test_a_job_knows_the_names_of_secrets(tmp_path: Path, scheduler: str) -> None:
    sandbox = Sandbox(tmp_path)
    plan = sandbox.plan(cluster={"scheduler": scheduler}, env={"secrets": redaction.all_patterns(["PIN"])})
    outcome = sandbox.execute(plan)
    assert outcome.environment["LAUNCHER_SECRETS"] == ",".join(plan.env.secrets)


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("+cluster.environment.API_KEY=abcdefgh", "+cluster.environment.API_KEY=${oc.env:API_KEY}"),
        ("++cluster.environment.api_key = 'a=b'", "++cluster.environment.api_key=${oc.env:api_key}"),
        ("cluster.environment.API_KEY=${oc.env:MINE,abcdefgh}", "cluster.environment.API_KEY=${oc.env:API_KEY}"),
        ("cluster.environment.API_KEY=${oc.decode:abcdefgh}", "cluster.environment.API_KEY=${oc.env:API_KEY}"),
        ("~cluster.environment.API_KEY=abcdefgh", "~cluster.environment.API_KEY"),
        ("+cluster.pools.gpu.environment.API_KEY=abcdefgh", "+cluster.pools.gpu.environment.API_KEY=${oc.env:API_KEY}"),
        *((word, word) for word in (
            "cluster.environment.API_KEY=${oc.env:MINE}", "cluster.environment.API_KEY='${oc.env:MINE}'",
            "cluster.environment.API_KEY=$\\{oc.env\\:MINE\\}", "cluster.environment.API_KEY=null",
            "cluster.environment.API_KEY=", "~cluster.environment.API_KEY", "cluster.environment.PLAIN=abcdefgh",
            "cluster.environment={API_KEY: ${oc.env:MINE}, B: 1}", "cluster.environment={A: 1, API_KEY: null}",
            "cluster.environment={PLAIN: API_KEY}", "workload.lr=0.1",
            "cluster.pools.gpu.limits={nodes: 4}", "cluster.pools.gpu.environment.PLAIN='API_KEY: abcdefgh'",
        )),
    ],
)  # fmt: skip
def test_overrides_refer_to_the_environment(word: str, written: str) -> None:
    assert secrets.redact_overrides([word], redaction.SECRETS) == [written]


def test_the_value_of_an_override_is_left_out_although_a_later_one_wins() -> None:
    words = ["+cluster.environment.API_KEY=abcdefgh", "cluster.environment.API_KEY=null"]
    written = secrets.redact_overrides(words, redaction.SECRETS)
    assert written == ["+cluster.environment.API_KEY=${oc.env:API_KEY}", words[1]]


@pytest.mark.parametrize(
    "section",
    [
        "environment={API_KEY: abcdefgh, B: 1}", "environment={B: 1,API_KEY:e}",
        "environment={API_KEY: '${oc.env:MINE,abcdefgh}'}", "pools={gpu: {environment: {API_KEY: abcdefgh}}}",
        "pools.gpu={environment: {API_KEY: abcdefgh}}", "pools.gpu.environment={API_KEY: abcdefgh}",
    ],
)  # fmt: skip
def test_a_whole_section_with_a_value_of_a_secret_is_refused(section: str) -> None:
    with pytest.raises(ConfigError, match=r"has API_KEY, a secret .* as cluster\.environment\.API_KEY=") as caught:
        secrets.redact_overrides([f"+cluster.{section}"], redaction.SECRETS)
    assert "abcdefgh" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "value", "where"),
    [
        ({"workload": {"kwargs": {"key": "x-0123456789"}}}, "0123456789", "workload.kwargs.key"),
        ({"workload": {"kwargs": {"0123456789": {"a": 1}}}}, "0123456789", "workload.kwargs"),
        ({"0123456789": 1}, "0123456789", "the config"),
        ({"a": ["/abc+def=="]}, "/abc+def==", "a"),
    ],
)
def test_a_secret_where_it_cannot_be_left_out_is_refused(values: dict[str, Any], value: str, where: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{re.escape(where)} has the value of WANDB_API_KEY"):
        secrets.require_absent(values, {"WANDB_API_KEY": value})


def test_paths_and_short_words_are_no_secrets(tmp_path: Path) -> None:
    secrets.require_absent({"a": f"{tmp_path}/key", "b": "yes"}, {"A_KEY": str(tmp_path), "B_KEY": "yes"})


def test_what_tasks_of_pbs_read_is_in_no_file_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_SECRETS_DIR", str(tmp_path / "own"))
    (tmp_path / "tasks").mkdir()
    handed = task_starters.write_environment(tmp_path / "tasks", {"HF_TOKEN": "o'ne", "PLAIN": "two"})
    assert "o'ne" not in "".join(path.read_text() for path in (tmp_path / "tasks").iterdir())
    done = subprocess.run(
        ["bash", "-c", f'{handed.shell}\necho "$HF_TOKEN $PLAIN"'], capture_output=True, text=True, check=True, env={}
    )
    assert done.stdout == "o'ne two\n"
    handed.remove()
    assert not list(tmp_path.rglob("*.sh"))
    assert not list((tmp_path / "own").iterdir())
    assert (tmp_path / "tasks").is_dir()
    (tmp_path / "file").touch()
    monkeypatch.setenv("LAUNCHER_SECRETS_DIR", str(tmp_path / "file"))  # a home that cannot be written to
    assert (
        "/given"
        in task_starters.write_environment(
            tmp_path / "tasks", {"HF_TOKEN": "x", "LAUNCHER_SECRETS_FILE": "/given"}
        ).shell
    )


@pytest.mark.parametrize(("words", "key"), [
    (["workload.args=['${oc.env:MY_TOKEN}']"], "workload.args[0]"),
    (["name=x-${oc.env:MY_TOKEN}"], "name"),
    (["+cluster.environment.MINE=${oc.env:MY_TOKEN}"], "cluster.environment.MINE"),
    (["+cluster.environment.API_KEY=${oc.env:MY_TOKEN}"], None),
    (["+cluster.pools={gpu: {environment: {MINE: '${oc.env:MY_TOKEN}'}}}"], "cluster.pools.gpu.environment.MINE"),
    (["+cluster.pools={gpu: {environment: {API_KEY: '${oc.env:MY_TOKEN}'}}}"], None),
    (["name=x-${oc.env:OTHER}"], None),
])  # fmt: skip
def test_however_short_a_secret_is_no_key_may_have_it(
    words: list[str], key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value of three characters is found anywhere: so it is the variable that counts."""
    monkeypatch.setenv("MY_TOKEN", "abc")
    monkeypatch.setenv("OTHER", "abc")
    resume.register()
    words = ["workload=program", "workload.script=x.py", *words]
    if key is None:
        compose.composed(words)
    else:
        with pytest.raises(ConfigError, match=f"^{re.escape(key)} has the value of MY_TOKEN, a secret"):
            compose.composed(words)


def test_each_point_of_a_sweep_is_looked_at_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one's config is the first one's with what differs, where another variable may be meant."""
    monkeypatch.setenv("MY_TOKEN", "abc")
    monkeypatch.setenv("OTHER", "abc")
    resume.register()

    def by_hydra(overrides: Sequence[str], _: int) -> DictConfig:
        return compose.by_hydra(overrides)[0]

    composer = Composer(by_hydra)
    words = ["workload=program", "workload.args=['${oc.env:${name}}']"]
    composer([*words, "workload.script=x.py", "name=OTHER"], 0)
    with pytest.raises(ConfigError, match=r"^workload.args\[0\] has the value of MY_TOKEN, a secret"):
        composer([*words, "workload.script=x.py", "name=MY_TOKEN"], 1)
