"""The job scripts of many runs and functions, whole: what a dry run shows, which is what submission uses."""

from __future__ import annotations

import operator
import re
import uuid
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
import submitit

from launcher.paths import resource
from tests.golden.cases import ALWAYS, CASES, ENVIRONMENT, PLAIN, Case
from tests.golden.conftest import Shown, World
from tests.golden.golden import HERE, check, check_files, check_lines

SCRIPTS, PLANS, FUNCTIONS = "scripts", "plans", "functions"
ROWS = "plans/rows.txt"
NO_ROW = "-"
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
EARLIER = {"one": "slurm", "two": "slurm", "three": "pbs"}  # runs that others wait for
# Takes every job and runs none.
SGE_QSUB = """\
#!/bin/sh
[ "$1" = -help ] && echo "SGE 8.1.9" || echo 'Your job 1 ("a") has been submitted'
"""
# What submitit is asked for: parameters, and how many functions.
CALLS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 1),
    "array": (
        {
            "timeout_min": 90, "mem_gb": 4, "cpus_per_task": 3, "gpus_per_node": 1, "pbs_array_parallelism": 2,
            "pbs_queue": "workq", "pbs_setup": ["module load cuda"], "pbs_teardown": ["echo over"],
        },
        5,
    ),
    "tasks": (
        {
            "nodes": 2, "tasks_per_node": 3, "pbs_filesystems": "home", "stderr_to_stdout": True, "name": "three",
            "pbs_directives": {"m": "n"}, "pbs_rerunnable": False,
        },
        1,
    ),
    "mpiexec": (
        {"pbs_select": "2:ncpus=4:mpiprocs=4", "tasks_per_node": 4, "pbs_mpiexec": ["mpiexec", "-n", "{tasks}"]}, 1,
    ),
    "sge": (
        {
            "timeout_min": 90, "cpus_per_task": 3, "gpus_per_node": 3, "sge_gpu_resource": "gpu",
            "sge_parallel_environment": "smp", "sge_array_parallelism": 2, "sge_queue": "all.q",
            "sge_directives": {"m": "n"}, "sge_setup": ["module load cuda"],
        },
        5,
    ),
    "sge-tasks": ({"nodes": 2, "tasks_per_node": 3, "sge_parallel_environment": "nodes"}, 1),
}  # fmt: skip


@pytest.fixture
def environment(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """The environment of an allocation, for the cases that run inside one."""
    if "case" not in request.fixturenames:
        return {}
    return ENVIRONMENT.get(request.getfixturevalue("case").scheduler, {})


@pytest.fixture
def installed(request: pytest.FixtureRequest) -> bool:
    return "case" in request.fixturenames and request.getfixturevalue("case").installed


@pytest.fixture
def earlier(show: Callable[..., Shown], world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submits runs that wait in a queue, on which other runs can depend."""
    with monkeypatch.context() as patch:
        patch.setenv("LAUNCHER_RUNS_DIR", f"{world.folder}/earlier")
        for name, cluster in EARLIER.items():
            if not (world.folder / "earlier" / name).exists():
                show("workload=collective", f"cluster={cluster}", f"run_id={name}", *ALWAYS[1:])


def plan_rows(text: str) -> dict[str, str]:
    """Returns the rows of a plan: what each begins with, and the rest, with a slash for a new line."""
    found: dict[str, str] = {}
    for line in text.rstrip().splitlines():
        key, value = re.split(r": |  +", line, maxsplit=1)
        key = key or list(found)[-1]
        found[key] = f"{found[key]} / {value}" if key in found else value
    return found


def general(case: Case, script: str) -> str:
    """A script without the run's name and its token."""
    return re.sub(rf"\b{case.name}\b|launcher-[0-9a-f]{{20}}", "NAME", script)


@cache
def kept(case: Case, modified: int) -> str:
    """The golden script of a case, which `make golden` may change meanwhile."""
    return general(case, (HERE / f"{SCRIPTS}/{case.id}.sh").read_text())


def with_equal_script(case: Case, script: str) -> Case | None:
    """Returns the first case of the scheduler with the same script, but for the run's name and its token."""
    own = general(case, script)
    for other in CASES[: CASES.index(case)]:
        path = HERE / f"{SCRIPTS}/{other.id}.sh"
        if other.scheduler == case.scheduler and path.exists() and kept(other, path.stat().st_mtime_ns) == own:
            return other
    return None


@pytest.mark.parametrize("workload", PLAIN)
def test_the_plan_of_a_workload_is_what_it_was(workload: str, show: Callable[..., Shown]) -> None:
    words = [f"workload={workload}", *PLAIN[workload].split(), "cluster=slurm", "run_id=NAME", *ALWAYS]
    text = show(*words).out.partition("#!/bin/bash\n")[0]
    check(f"{PLANS}/{workload}.txt", text.rstrip("\n") + "\n")


@EACH
def test_the_script_of_a_run_is_what_it_was(
    case: Case, show: Callable[..., Shown], request: pytest.FixtureRequest
) -> None:
    if case.waits:
        request.getfixturevalue("earlier")
    shown = show(*case.command)
    begin = shown.out.index("\n# " if case.is_sweep else "#!/bin/bash\n")
    plain = {} if case.is_sweep else plan_rows((HERE / f"{PLANS}/{case.workload}.txt").read_text())
    found, plain = (
        plan_rows(shown.err + shown.out[:begin]),
        plain | {"run": case.name, "directory": f"/scratch/me/runs/{case.name}"},
    )
    keys = dict.fromkeys([*found, *plain])
    lines = [f"{key}: {found.get(key, NO_ROW)}" for key in keys if found.get(key) != plain.get(key)]
    script = shown.out[begin:].lstrip("\n")
    if other := with_equal_script(case, script):
        lines.append(f"script: that of {other.id}")
    else:
        check(f"{SCRIPTS}/{case.id}.sh", script)
    check_lines(ROWS, case.id, lines)


@pytest.mark.parametrize("name", CALLS)
def test_the_script_of_a_function_is_what_it_was(name: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters, count = CALLS[name]
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=0))
    # The environment's file is named by a hash of what is in it.
    monkeypatch.setenv("HOME", "/nonexistent")
    for variable in ("LAUNCHER_CONFIG_DIR", "LAUNCHER_CACHE_DIR", "PYTEST_CURRENT_TEST"):
        monkeypatch.delenv(variable)
    folder = world.folder / FUNCTIONS / name
    cluster = "pbs"
    if name.startswith("sge"):
        cluster = "sge"
        (world.folder / "bin-sge").mkdir(exist_ok=True)
        (world.folder / "bin-sge/qsub").write_text(SGE_QSUB)
        (world.folder / "bin-sge/qsub").chmod(0o755)
        monkeypatch.setenv("PATH", "../bin-sge:/usr/bin:/bin")
    executor = submitit.AutoExecutor(folder, cluster=cluster)
    executor.update_parameters(**parameters)
    job = executor.map_array(operator.neg, range(count))[0]
    check(f"{FUNCTIONS}/{name}.sh", world.plain(job.paths.submission_file.read_text()))


def test_no_file_is_left_over() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    lines = (HERE / ROWS).read_text().splitlines()
    others = {line.partition(" script: ")[0] for line in lines if " script: " in line}
    check_files(SCRIPTS, [f"{case.id}.sh" for case in CASES if case.id not in others])
    check_files(PLANS, [*(f"{workload}.txt" for workload in PLAIN), "rows.txt"])
    assert sorted({line.partition(" ")[0] for line in lines} - {case.id for case in CASES}) == []
    check_files(FUNCTIONS, [f"{name}.sh" for name in CALLS])


def test_every_profile_that_comes_with_the_launcher_has_a_script() -> None:
    assert {path.stem for path in resource("conf").glob("cluster/*.yaml")} <= {case.scheduler for case in CASES}


def test_every_line_of_the_templates_is_in_a_script() -> None:
    kept = {line for path in HERE.glob("*/*.sh") for line in path.read_text().splitlines()}
    for path in resource("templates").rglob("*.j2"):
        text = re.sub(r"\{#.*?#\}\n?", "", path.read_text(), flags=re.DOTALL)
        fixed = [line for line in text.splitlines() if not re.search(r"\{[{%]", line)]
        assert [line for line in fixed if line not in kept] == [], f"{path.name}: tests/golden/cases.py wants a case"
