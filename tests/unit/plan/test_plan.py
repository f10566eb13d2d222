"""A plan survives its record, and the record of another version is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.schema import P2P, Collective, DDPMnist, LaunchMode, Workload
from launcher.plan.plan import CONTROL, JobPlan, as_dict, from_dict, plan_misfit
from launcher.schedulers.pbs import settings as pbs
from launcher.schedulers.slurm import settings as slurm
from tests.unit.plans import plan_of

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10).filter(
    lambda text: not CONTROL.search(text)
)
texts = st.none() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | words
plain = texts | st.booleans()
common = {
    "setup": st.lists(st.lists(words, max_size=3).map("\n".join), max_size=3),
    "environment": st.dictionaries(st.from_regex(r"[A-Z_]{1,5}", fullmatch=True), texts, max_size=3),
}
clusters = st.one_of(
    st.fixed_dictionaries(
        {"scheduler": st.sampled_from(["local", "allocation"])},
        optional={**common, "directives": st.dictionaries(st.from_regex(r"[a-z][a-z_]{2,8}", fullmatch=True), plain)},
    ),
    st.fixed_dictionaries(
        {"scheduler": st.just("slurm")},
        optional={
            **common,
            "gpu_directive": st.sampled_from(slurm.GpuDirective),
            "partition": words,
            "directives": st.dictionaries(st.from_regex(r"[a-z][a-z_]{2,8}", fullmatch=True), plain, max_size=3),
            "srun_args": st.lists(words, max_size=3),
        },
    ),
    st.fixed_dictionaries(
        {"scheduler": st.just("pbs")},
        optional={
            **common,
            "gpu_directive": st.sampled_from(pbs.GpuDirective),
            "queue": words,
            "chunk": st.dictionaries(words, plain, max_size=3),
            "directives": st.dictionaries(st.sampled_from("lmMW"), plain | st.lists(words, max_size=3), max_size=3),
            "mpiexec": st.lists(words, max_size=3),
        },
    ),
)
workloads = st.one_of(
    st.builds(P2P, st.just("p2p"), st.just("m:f"), seed=st.integers(0, 9), pattern=st.lists(words, max_size=3)),
    st.builds(Collective, st.just("c"), st.just("m.n:f"), seed=st.just(0), op=words | st.lists(words, max_size=3)),
    st.builds(
        DDPMnist, st.just("ddp"), st.just("m:f"), seed=st.just(0), lr=st.floats(1e-9, 10), data_dir=st.none() | words
    ),
)


@given(clusters, workloads, st.integers(1, 9), st.integers(0, 8), st.sampled_from(LaunchMode))
def test_a_plan_survives_its_record(
    cluster: dict[str, Any], workload: Workload, nodes: int, gpus: int, mode: LaunchMode
) -> None:
    plan = plan_of(cluster=cluster, workload=workload, nodes=nodes, gpus_per_node=gpus, launch={"mode": mode})
    again = from_dict(json.loads(json.dumps(as_dict(plan))))
    assert again == plan
    assert isinstance(again, JobPlan)


@pytest.mark.parametrize("damage", [{"colour": "red"}, {"nodes": ...}])
def test_a_plan_of_another_version_is_told_apart(damage: dict[str, Any]) -> None:
    values = {key: value for key, value in {**as_dict(plan_of()), **damage}.items() if value is not ...}
    assert plan_misfit(values) is not None


def test_a_plan_with_keys_that_are_gone_is_read() -> None:
    plan = plan_of(cluster={"name": "polaris"})
    values = json.loads(json.dumps(as_dict(plan)))
    values["cluster"]["node_type"] = "polaris"
    values["archive"]["import_time"] = 4.5
    assert plan_misfit(values) is None
    assert from_dict(values) == plan
