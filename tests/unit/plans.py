"""Valid configs and plans for tests; `with_fields` changes single values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import yaml

from launcher.config.scheduler_table import cluster_class
from launcher.config.schema import Cluster, Config, Launch, Workload
from launcher.paths import resource
from launcher.plan.build import PlanFacts
from launcher.plan.plan import JobPlan
from launcher.schedulers import registry
from launcher.submission.prepare import make_plan
from launcher.worker.stop import CHECKPOINT, RESUME, TRAIN, Settings

PLANS: dict[str, JobPlan] = {}
SITE = PlanFacts("run-1", "/runs/run-1", "/usr/bin/python3", None, "/home/me")


def make_config(
    *, cluster: dict[str, Any] | None = None, launch: dict[str, Any] | None = None, workload: Any = None, **keys: Any
) -> Config:
    """Returns a config for Slurm; `cluster={"partition": "gpu"}` changes keys of a section."""
    return Config(
        **{
            "workload": Workload("work", "my.module:main", seed=0) if workload is None else workload,
            "cluster": make_cluster(**(cluster or {})),
            "launch": Launch(**(launch or {})),
            "name": "job",
            "runs_dir": "/runs",
            **keys,
        }
    )


def make_cluster(scheduler: str = "slurm", **keys: Any) -> Cluster:
    """A profile of a scheduler."""
    kind = cluster_class(scheduler)
    assert kind is not None
    return kind(**{"name": "here", "scheduler": scheduler, **keys})


def plan_of(site: PlanFacts = SITE, **keys: Any) -> JobPlan:
    """Returns the plan of `make_config(**keys)`; the same one each time, which nobody may change."""
    key = repr((site, keys))
    if key not in PLANS:
        PLANS[key] = make_plan(make_config(**keys), site)
    return PLANS[key]


def bare_plan(**fields: Any) -> JobPlan:
    """Returns a plan without any checks of its values; see `with_fields`."""
    scheduler = registry.scheduler(fields.get("cluster", {}).get("scheduler", "slurm"))
    plan = replace(plan_of(), cluster=plan_of(cluster={"scheduler": scheduler.name}).cluster)
    return with_fields(plan, **{"queued": scheduler.queued, **fields})


def sge_plan(*, cluster: dict[str, Any] | None = None, **fields: Any) -> JobPlan:
    """The same for Grid Engine."""
    return bare_plan(cluster={"scheduler": "sge", **(cluster or {})}, **fields)


def with_fields(plan: JobPlan, **fields: Any) -> JobPlan:
    """Returns the plan with other values; for a section by key: `checkpoint={"keep": 3}`."""
    return replace(plan, **{
        name: _section(getattr(plan, name), value) if isinstance(value, dict) else value
        for name, value in fields.items()
    })  # fmt: skip


def _section(section: Any, values: dict[str, Any]) -> Any:
    own = {key: value for key, value in values.items() if key not in section.__dataclass_fields__}
    settings = {"settings": {**section.settings, **own}} if own else {}
    return replace(section, **settings, **{key: value for key, value in values.items() if key not in own})


def hook_of(workload: str) -> str | None:
    """Returns the hook of a workload in conf/."""
    found: str | None = yaml.safe_load((resource("conf") / "workload" / f"{workload}.yaml").read_text()).get("hook")
    return found


def run_settings(**values: Any) -> Settings:
    """Settings of a rank; keys of `checkpoint`, `resume` and `train` are given by their own names."""
    sections = {"checkpoint": CHECKPOINT, "resume": RESUME, "train": TRAIN}
    parts: dict[str, Any] = {}
    for name, section in sections.items():
        known = {key: values.pop(key) for key in [*values] if hasattr(section, key) and key not in ("dir", "timeout")}
        parts[name] = replace(section, **known)
    if (folder := values.pop("checkpoint_dir", None)) is not None:
        parts["checkpoint"] = replace(parts["checkpoint"], dir=str(folder))
    return Settings(**parts, **values)
