"""What `doctor` says of what it sees: each check is given facts."""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from launcher.cli import commands, doctor
from launcher.cli.doctor import DoctorCheck, line, run_all, start
from launcher.config.schema import Cluster
from launcher.files import folder_checks
from launcher.schedulers import registry
from launcher.schedulers.base import Scheduler
from launcher.schedulers.registry import LocalScheduler
from launcher.schedulers.site import Finding, Level, ok, problem, warning, worst
from tests.unit.plans import make_config

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM


# -- the runner


def test_what_hangs_is_a_line_and_not_a_hang() -> None:
    seen, never = threading.Event(), threading.Event()

    def hangs() -> Iterator[Finding]:
        yield ok("disk", "seen")
        seen.set()
        never.wait()

    def breaks() -> Iterator[Finding]:
        raise RuntimeError("odd")
        yield

    # before the other one's limit is looked at
    fine = DoctorCheck("fine", lambda: [ok("fine", str(seen.wait(30)))], 60)
    checks = [fine, DoctorCheck("disk", hangs, 0.05), DoctorCheck("broken", breaks)]
    found = list(run_all(checks))
    never.set()
    assert [(each.about, each.level) for each in found] == [
        ("fine", OK), ("disk", OK), ("disk", PROBLEM), ("broken", PROBLEM),
    ]  # fmt: skip
    assert "no answer within 0.05 s" in found[2].says
    assert "RuntimeError: odd" in found[3].says


def test_checks_look_at_the_same_time_and_tell_in_order() -> None:
    second = threading.Event()

    def sets() -> Iterator[Finding]:
        second.set()
        yield ok("second", "")

    checks = [DoctorCheck("first", lambda: [ok("first", str(second.wait(30)))], 60), DoctorCheck("second", sets, 60)]
    assert [(each.about, each.says) for each in run_all(checks)] == [("first", "True"), ("second", "")]
    assert [each.about for each in start(DoctorCheck("late", lambda: [ok("late", "")]))()] == ["late"]


def test_the_worst_level_counts() -> None:
    assert worst([]) is OK
    assert worst([ok("a", ""), warning("b", "")]) is WARNING
    assert worst([ok("a", ""), problem("c", ""), warning("b", "")]) is PROBLEM


def test_a_line_fits_a_terminal_and_says_what_to_do() -> None:
    text = line(problem("reachable", "Slurm does not answer " * 10, "do this " * 20))
    assert max(map(len, text.splitlines())) < 80
    assert text.startswith("PROBLEM  reachable  Slurm does not")
    assert "-> do this" in text


# -- this machine


def test_no_secret_is_shown() -> None:
    environ = {
        "NCCL_DEBUG": "INFO", "LAUNCHER_TOKEN": "hush", "TORCH_API_KEY": "hush", "MLFLOW_PASSWORD": "hush",
        "OMP_NUM_THREADS": "4", "UCX_URL": "http://me:hush@host:1/x", "AWS_SECRET_ACCESS_KEY": "hush",
    }  # fmt: skip
    told = "".join(each.says for each in doctor.environment(environ))
    proxied = {"https_proxy": "http://me:hush@proxy:3128", "HTTP_PROXY": "me:hush@proxy", "no_proxy": "localhost"}
    told += doctor.proxies(proxied).says
    assert "hush" not in told
    assert "LAUNCHER_TOKEN=(not shown); NCCL_DEBUG=INFO" in told
    assert "proxy:3128" in told
    assert "no_proxy=localhost" in told


@pytest.mark.parametrize(
    ("found", "level"),
    [
        (doctor.locale("utf-8", 0o022), [OK, OK]),
        (doctor.locale("ascii", 0o022), [WARNING, OK]),
        (doctor.locale("UTF-8", 0o722), [OK, PROBLEM]),
        ([doctor.limits({"nofile": 65536, "nproc": None})], [OK]),
        ([doctor.limits({"nofile": 1024, "nproc": None})], [WARNING]),
        ([doctor.limits({"nofile": None, "nproc": 100})], [WARNING]),
        ([doctor.host("login1", ["10.0.0.1"])], [OK]),
        ([doctor.host("login1", "Name or service not known")], [PROBLEM]),
        ([doctor.ports((20000, 32767), (32768, 60999), 16, 16)], [OK]),
        ([doctor.ports((20000, 40000), (32768, 60999), 16, 16)], [WARNING]),
        ([doctor.ports((20000, 32767), None, 3, 16)], [OK]),
        ([doctor.ports((20000, 32767), None, 0, 16)], [PROBLEM]),
        ([doctor.interface(None, ["lo", "eth0"], queued=True)], [OK]),
        ([doctor.interface("ib0", ["lo", "eth0"], queued=True)], [WARNING]),
        ([doctor.interface("ib0", ["lo", "eth0"], queued=False)], [PROBLEM]),
        ([doctor.interface("eth0", ["lo", "eth0"], queued=False)], [OK]),
        ([doctor.temporary("/tmp", 10 * 2**30)], [OK]),
        ([doctor.temporary("/tmp", 10 * 2**20)], [WARNING]),
        ([doctor.temporary("/tmp", "No space left on device")], [PROBLEM]),
        (doctor.environment({}), []),
        (doctor.environment({"SLURM_JOB_ID": "7"}), [OK]),
        (doctor.environment({"LD_PRELOAD": "x.so"}), [OK, WARNING]),
    ],
)
def test_facts_of_this_machine_are_judged(found: Iterable[Finding], level: list[Level]) -> None:
    findings = list(found)
    assert [each.level for each in findings] == level
    assert all(each.do for each in findings if each.level is PROBLEM)


# -- software


@pytest.mark.parametrize(
    ("version", "level"), [((3, 9, 1), PROBLEM), ((3, 10, 0), OK), ((3, 13, 2), OK), ((3, 14, 0), PROBLEM)]
)
def test_pythons_that_work_are_known(version: tuple[int, ...], level: Level) -> None:
    assert doctor.python(version, "/usr/bin/python3").level is level


def test_missing_and_wrong_packages_come_with_the_command() -> None:
    versions: dict[str, str | None] = dict.fromkeys(doctor.NEEDED, "99")
    versions |= {"hydra-core": "1.3.8", "omegaconf": "2.3.1", "submitit": "1.5.4", "tensorboard": "2.2"}
    first, extras = doctor.packages(versions.get)
    assert (first.level, extras.says) == (OK, "tensorboard 2.2")
    first, _ = doctor.packages({**versions, "hydra-core": "1.4.0", "rich": None}.get)
    assert first.level is PROBLEM
    assert first.do == "pip install 'hydra-core>=1.3.4,<1.4'; pip install rich"


TORCH = {
    "version": "2.13.0+cu128",
    "cuda": "12.8",
    "hip": None,
    "xpu": False,
    "took": 2.0,
    "backends": ["gloo", "nccl"],
    "gpus": ["H"],
}


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({}, OK, "2.13.0+cu128 (CUDA 12.8), gloo, nccl; 1 GPU here; import took 2.0 s"),
        ({"cuda": None, "gpus": []}, OK, "CPU only"),
        ({"cuda": None, "xpu": True}, OK, "(XPU)"),
        ({"took": 40.0}, WARNING, "import took 40.0 s"),
        ({"backends": []}, PROBLEM, "no backend"),
        ({"version": "2.3.1+cu121"}, PROBLEM, "2.3.1"),
        ({"version": "2.4.0+cpu"}, OK, "2.4.0"),
        ({"version": "2.15.0"}, OK, "2.15.0"),
        ({"version": "2.9.0a0+50eac811a6.nv25.09"}, OK, "2.9.0a0+50eac811a6.nv25.09"),
        ({"version": "3.0.0.dev20261101+rocm7.2"}, OK, "3.0.0.dev20261101"),
    ],
)
def test_torch_is_judged(changes: dict[str, object], level: Level, words: str) -> None:
    found = doctor.torch({**TORCH, **changes})
    assert (found.level, words in found.says) == (level, True)


@pytest.mark.parametrize(
    ("version", "enough"),
    [("2.3.1", False), ("2.4.0", True), ("2.15.0", True), ("2.9.0a0+50eac811a6.nv25.09", True), ("3.0.0", True)],
)
def test_the_package_asks_for_the_same_torch_as_the_doctor(version: str, enough: bool) -> None:
    """Pre-releases that are installed count for pip."""
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    (asked,) = re.findall(r'^  "torch(.*)",$', project, re.MULTILINE)
    assert f"torch{asked}" == doctor.TORCH
    assert SpecifierSet(asked).contains(version, prereleases=True) is enough


def test_a_torch_that_is_not_there_is_a_problem() -> None:
    assert doctor.torch("No module named 'torch'").level is PROBLEM


@pytest.mark.parametrize(
    ("answer", "level", "words"),
    [
        (None, OK, "no nvidia-smi"),
        ("NVIDIA H100, 81559, 550.54\nNVIDIA H100, 81559, 550.54\n", OK, "2 x NVIDIA H100, 81559 MiB, driver 550.54"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the driver", WARNING, "has failed"),
        ("", WARNING, "nothing"),
    ],
)
def test_gpus_are_counted_by_kind(answer: str | None, level: Level, words: str) -> None:
    found = doctor.driver(answer)
    assert (found.level, words in found.says) == (level, True)


def test_an_nvidia_smi_that_may_not_be_run_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting it fails as where a folder of PATH may not be searched."""
    (tmp_path / "nvidia-smi").touch(0o600)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no nvidia-smi" in doctor.probe_nvidia().says


# -- the folder of runs

GIB = 2**30


@pytest.mark.parametrize(
    ("space", "queued", "level"),
    [
        (("nfs4", 100 * GIB, 10**7), True, OK),
        (("ext4", 100 * GIB, 10**7), False, OK),
        (("ext4", 100 * GIB, 10**7), True, WARNING),
        (("lustre", GIB, None), True, WARNING),
        (("lustre", 1000, None), True, PROBLEM),
        (("nfs4", 100 * GIB, 12), True, WARNING),
    ],
)
def test_space_is_judged(space: tuple[str, int, int | None], queued: bool, level: Level) -> None:
    assert doctor.space("/runs", *space, queued=queued).level is level


@pytest.mark.parametrize(
    ("tried", "level"),
    [
        (((), 0.0, 0.1), OK),
        (((), 90.0, 0.1), WARNING),
        (((("flock", "No locks available"),), 0.0, 0.1), WARNING),
        (((("flock", "No locks"), ("a link", "Operation not permitted")), 0.0, 0.1), PROBLEM),
    ],
)
def test_what_a_folder_does_is_judged(tried: tuple[Any, float, float], level: Level) -> None:
    assert doctor.file_operations("/runs", *tried).level is level


def test_a_folder_is_tried_out_and_left_as_it_was(tmp_path: Path) -> None:
    found = list(doctor.probe_folder(tmp_path / "not/there", queued=False))
    assert [each.level for each in found] == [OK, OK]
    assert f"{tmp_path} (for {tmp_path}/not/there" in found[0].says
    assert list(tmp_path.iterdir()) == []
    assert doctor.try_out(tmp_path)[0] == []


def test_what_fails_in_a_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    assert doctor.try_out(tmp_path)[0] == [("a link", "Operation not supported")]
    tmp_path.chmod(0o777)
    assert any("others can write" in each.says for each in doctor.probe_folder(tmp_path, queued=False))


def test_the_longest_mount_point_tells_the_file_system() -> None:
    mounts = (
        "/dev/a / ext4 rw 0 0\nsrv:/x /home nfs4 rw 0 0\nl@tcp:/s /home/big lustre rw 0 0\nx /my\\040disk xfs rw 0 0\n"
    )
    for path, kind in (("/home/me", "nfs4"), ("/home/big/runs", "lustre"), ("/homes", "ext4"), ("/my disk/x", "xfs")):
        assert folder_checks.kind_at(path, mounts) == kind


@pytest.mark.parametrize("runs_dir", ["~no-such-user-here/runs", "/tmp"])
def test_what_this_machine_does_not_tell_fails_one_check_only(monkeypatch: pytest.MonkeyPatch, runs_dir: str) -> None:
    def refused() -> list[tuple[int, str]]:
        raise OSError("not permitted")

    monkeypatch.setattr(doctor.socket, "if_nameindex", refused)
    checks = {each.about: each for each in doctor.rest(make_config(runs_dir=runs_dir))}
    (found,) = run_all([checks["interface"]])
    assert (found.level, "not permitted" in found.says) == (PROBLEM, True)
    assert any(each.level is PROBLEM for each in run_all([checks["runs_dir"]])) is runs_dir.startswith("~")


# -- the scheduler


class Known(LocalScheduler):
    """A scheduler whose commands are as they are here."""

    def __init__(self, name: str, command: str, found: str = "", problem: str | None = None) -> None:
        self.name, self.title, self.command = name, name.title(), command
        self._found, self._problem = found, problem

    def found(self) -> str:
        return self._found

    def problem(self) -> str | None:
        return self._problem

    def check(self, cluster: Cluster, timeout: float) -> Iterator[Finding]:
        yield ok("checked", self.name)


AWAY, HERE = Known("away", "asub", problem="go to a login node"), Known("here", "hsub", "Here (hsub is /bin/hsub)")
OTHERS = Known("others", "osub", "an osub that is not Others'", problem="put the right one in front of it")
LOCAL = registry.scheduler("local")


@pytest.mark.parametrize(
    ("wanted", "known", "told"),
    [
        (LOCAL, [AWAY, AWAY], [(OK, "none found: no asub is on PATH")]),
        (LOCAL, [AWAY, OTHERS], [(OK, "an osub that is not Others'")]),
        (LOCAL, [OTHERS, HERE], [
            (OK, "an osub that is not Others'; Here (hsub is /bin/hsub)"),
            (OK, "the profile runs on this machine; `doctor --cluster here` checks the scheduler"),
        ]),
        (HERE, [AWAY, HERE], [(OK, "Here (hsub is /bin/hsub)")]),
        (AWAY, [AWAY, HERE], [(PROBLEM, "Here (hsub is /bin/hsub); the profile needs Away")]),
        (OTHERS, [OTHERS, HERE],
         [(PROBLEM, "an osub that is not Others'; Here (hsub is /bin/hsub); the profile needs Others")]),
    ],
)  # fmt: skip
def test_the_scheduler_of_the_profile_must_be_there(
    wanted: Scheduler, known: list[Scheduler], told: list[tuple[Level, str]]
) -> None:
    found = list(doctor.which(wanted, known))
    assert [(each.level, each.says) for each in found] == told
    assert all(bool(each.do) is (each.level is PROBLEM) for each in found)


# -- the command


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without torch, whose import takes long, and with a folder and a PATH of its own."""
    monkeypatch.setattr(doctor, "LOOK_AT_TORCH", f"print({json.dumps(json.dumps(TORCH))})")
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))


def told(*words: str) -> tuple[int, str]:
    printed = io.StringIO()
    with redirect_stdout(printed):
        code = commands.main(["doctor", *words])
    return code, printed.getvalue()


def test_this_machine_is_looked_at(quick: None) -> None:
    code, text = told("--cluster", "local")
    for about in ("launcher", "python", "packages", "config", "scheduler", "ports", "runs_dir", "files", "torch"):
        assert any(row.split()[1:2] == [about] for row in text.splitlines()), about
    assert code == (1 if "PROBLEM" in text else 0)


def test_for_programs_it_is_one_object(quick: None) -> None:
    code, text = told("--cluster", "slurm", "--json")
    report = json.loads(text)
    assert (code, report["level"]) == (1, "problem")
    assert any(row["about"] == "scheduler" and row["level"] == "problem" for row in report["findings"])


def test_a_profile_that_is_not_there_is_a_problem_with_near_ones(quick: None) -> None:
    code, text = told("--cluster", "slrum")
    assert code == 1
    assert "Did you mean slurm" in " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("defaults: [slurm, _self_]\nname: x\npartition: [\n", "not valid YAML"),
        ("defaults: [local, _self_]\nname: x\nport_range: abc\n", "is not LOW-HIGH"),
        (
            "defaults: [local, _self_]\nname: x\npartitoin: abc\n",
            "x.yaml, line 3: there is no key 'cluster.partitoin'. Did you mean cluster.partition",
        ),
    ],
)
def test_a_profile_with_a_mistake_is_a_problem_that_names_it(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path / "own"))
    (tmp_path / "own/cluster").mkdir(parents=True)
    (tmp_path / "own/cluster/x.yaml").write_text(text)
    code, report = told("--cluster", "x", "--json")
    assert code == 1
    assert any(words in row["says"] and row["level"] == "problem" for row in json.loads(report)["findings"]), report


def test_what_takes_long_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LOOK_AT_TORCH", "import time; time.sleep(600)")
    assert doctor.probe_torch(0.2).level is PROBLEM


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")])
def test_a_config_that_cannot_be_read_hides_no_other_finding(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def composed(overrides: object) -> None:
        raise error

    monkeypatch.setattr("launcher.submission.resume.composed_config", composed)
    monkeypatch.setattr(doctor, "probe_torch", lambda limit: ok("torch", "here"))
    found = {each.about: each for each in doctor._all(None)}
    assert (found["config"].level, found["torch"].level, found["python"].level) == (PROBLEM, OK, OK)
    assert str(error) in found["config"].says
