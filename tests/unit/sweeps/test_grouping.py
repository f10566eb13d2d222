"""Points share an array if their scripts are equal but for the run; and so many of them run at once."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.schema import Env, Program, Runtime, Workload
from launcher.errors import ConfigError
from launcher.plan.plan import JobPlan
from launcher.submission import render
from launcher.sweeps import prepare
from tests.unit.plans import plan_of, with_fields

FOLDER = Path("/runs/lr-1")
ELEMENTS = FOLDER / "arrays" / "token"


def plans(*points: dict[str, Any]) -> dict[int, JobPlan]:
    """Plans of points 0, 1, ... with these keys."""
    return {
        index: with_fields(
            plan := plan_of(**keys),
            run_id=f"lr-1/{index}",
            run_dir=f"{FOLDER}/{index}",
            checkpoint={"dir": plan.checkpoint.dir.replace("/runs/run-1", f"{FOLDER}/{index}")},
        )
        for index, keys in enumerate(points)
    }


def members(*points: dict[str, Any]) -> list[tuple[int, ...]]:
    return [found for _, found in prepare.groups(plans(*points), "lr-1", FOLDER)]


def script(plan: JobPlan) -> str:
    return rendered(prepare.array_plan(plan, "lr-1", FOLDER))


def rendered(plan: JobPlan) -> str:
    found = render.rendered(plan, token="t", array="0-9", elements=ELEMENTS)
    return found.script + found.job


LR = [{"workload": Workload("work", "my.module:main", seed=seed)} for seed in range(3)]


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([{}], [(0,)]),
        (LR, [(0, 1, 2)]),
        ([{"seed": 1}, {"seed": 2}], [(0, 1)]),
        ([{"nodes": 1}, {"nodes": 2}, {"nodes": 1}], [(0, 2), (1,)]),
        ([{"time": "1h"}, {"time": "60m"}, {"time": "2h"}], [(0, 1), (2,)]),
        ([{"cluster": {"partition": "a"}}, {"cluster": {"partition": "b"}}], [(0,), (1,)]),
        ([{"cluster": {"environment": {"A": "1"}}}, {"cluster": {"environment": {"A": "2"}}}], [(0,), (1,)]),
        ([{"cluster": {"setup": ["a"]}}, {"cluster": {"setup": ["b"]}}, {"cluster": {"setup": ["a"]}}], [(0, 2), (1,)]),
        ([{"name": "a"}, {"name": "b"}], [(0,), (1,)]),
        ([{"cluster": {"scheduler": "pbs"}}, {}], [(0,), (1,)]),
        ([{"cluster": {"scheduler": "local"}}, {"cluster": {"scheduler": "local"}}], [(0, 1)]),
    ],
)
def test_the_table(points: list[dict[str, Any]], expected: list[tuple[int, ...]]) -> None:
    assert members(*points) == expected


KEYS: dict[str, list[Any]] = {
    "seed": [0, 1],
    "nodes": [1, 2],
    "gpus_per_node": [0, 2],
    "mem": [None, "4G"],
    "time": ["1h", "2h"],
    "cluster": [{}, {"account": "x"}, {"directives": {"licenses": "a"}}, {"srun_args": ["--x"]}, {"interface": "ib0"}],
    "launch": [{}, {"grace": 5}, {"max_restarts": 1}],
    "workload": [Workload("work", f"my.module:{name}", seed=0) for name in ("a", "b")],
}


@given(
    st.lists(
        st.fixed_dictionaries({}, optional={key: st.sampled_from(KEYS[key]) for key in KEYS}), min_size=1, max_size=5
    )
)
def test_the_script_of_an_array_is_that_of_each_point_in_it(points: list[dict[str, Any]]) -> None:
    own, texts = plans(*points), set()
    seen: list[int] = []
    for plan, indices in prepare.groups(own, "lr-1", FOLDER):
        text = rendered(plan)
        assert {script(own[index]) for index in indices} == {text}
        assert list(indices) == sorted(indices)
        texts.add(text)
        seen += indices
    assert sorted(seen) == list(range(len(points)))
    assert len(texts) == len(prepare.groups(own, "lr-1", FOLDER))  # two groups never have one script


def keys_for_ranks() -> list[str]:
    """The keys that RANK_KEYS names, of whole sections too."""
    parts = {name: getattr(plan_of(), name, None) for name in prepare.RANK_KEYS}
    inside = [f"{name}.{key.name}" for name, part in parts.items() if is_dataclass(part) for key in fields(part)]
    return [*(name for name, part in parts.items() if not is_dataclass(part)), *inside]


@pytest.mark.parametrize("name", keys_for_ranks())
def test_keys_for_ranks_are_in_no_script(name: str) -> None:
    """Or two points with different values would get one script."""
    plan = plans({})[0]
    section, _, key = name.rpartition(".")
    before = getattr(getattr(plan, section) if section else plan, key)
    values: dict[type, Any] = {
        bool: not before,
        int: 77,
        float: 7.7,
        str: "other",
        dict: {"x": "other"},
        type(None): 77,
    }
    other = {key: values[type(before)]}
    changed = with_fields(plan, **({section: other} if section else other))
    assert changed != plan
    assert script(changed) == script(plan)


@pytest.mark.parametrize(("runtime", "expected"), [(Runtime.pyxis, [(0, 2), (1,)]), (Runtime.apptainer, [(0, 1, 2)])])
def test_folders_that_srun_mounts_are_in_the_script(runtime: Runtime, expected: list[tuple[int, ...]]) -> None:
    env = Env(container="pytorch#x", container_runtime=runtime)
    scripts = [Program("w", "m:f", seed=0, script=f"/{name}/train.py") for name in "aba"]
    assert members(*({"env": env, "workload": script} for script in scripts)) == expected


def test_a_shared_folder_of_checkpoints_is_in_the_script() -> None:
    own = plans({}, {})
    elsewhere = {index: with_fields(plan, checkpoint={"dir": f"/scratch/{index}"}) for index, plan in own.items()}
    assert [found for _, found in prepare.groups(elsewhere, "lr-1", FOLDER)] == [(0,), (1,)]
    assert f'"checkpoints": "{FOLDER}/checkpoints"' in script(own[0])


def test_a_plan_that_cannot_be_written_is_named() -> None:
    own = plans({}, {"cluster": {"directives": {"nodes": 7}}})
    asked: list[int] = []

    class Naming:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            asked.append(self.index)

        def __exit__(self, *raised: object) -> None:
            if raised[1] is not None:
                asked.append(-self.index)

    with pytest.raises(ConfigError):
        prepare.groups(own, "lr-1", FOLDER, Naming)
    assert asked == [0, 1, -1]


@pytest.mark.parametrize(
    ("parallelism", "sizes", "expected"),
    [
        (None, [3, 4], [None, None]),
        (8, [10], [8]),
        (20, [10], [10]),
        (2, [10, 10], [1, 1]),
        (1, [10, 10, 10], [1, 1, 1]),  # an array that may run none would never end
        (10, [30, 10], [7, 3]),
        (5, [], []),
        (7, [1, 9], [1, 6]),
        (39, [1, 1, 1, 1, 1, 1, 1, 33], [1, 1, 1, 1, 1, 1, 1, 32]),
    ],
)
def test_shares(parallelism: int | None, sizes: list[int], expected: list[int | None]) -> None:
    assert prepare.shares(parallelism, sizes) == expected


@given(st.integers(1, 60), st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_shares_are_all_of_what_may_run_and_never_more(parallelism: int, sizes: list[int]) -> None:
    shares = [share for share in prepare.shares(parallelism, sizes) if share is not None]
    assert len(shares) == len(sizes)
    assert all(1 <= share <= size for share, size in zip(shares, sizes, strict=True))
    assert sum(shares) <= max(parallelism, len(sizes))
    if parallelism >= len(sizes):
        assert sum(shares) == min(parallelism, sum(sizes))
