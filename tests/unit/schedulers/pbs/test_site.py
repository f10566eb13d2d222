"""The profile of a PBS, from recorded answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from launcher.errors import ConfigError
from launcher.schedulers.pbs.client import PBS, PBSQueue
from launcher.schedulers.pbs.limits import PBSSite, survey

NODES = """\
pbs-n1
     ntype = PBS
     state = free
     resources_available.arch = linux
     resources_available.host = pbs-n1
     resources_available.gpu_model = a100
     resources_available.mem = 24684092kb
     resources_available.ncpus = 8
     resources_available.ngpus = 2
     resources_available.vnode = pbs-n1
     resources_assigned.ncpus = 0

pbs-n2
     ntype = PBS
     state = offline
     resources_available.mem = 24684092kb
     resources_available.ncpus = 16
     resources_available.ngpus = 0
     resources_available.vnode = pbs-n2
"""
QUEUES = (
    '{\n    "Queue":{\n        "workq":{\n            "queue_type":"Execution",\n'
    '            "enabled":"True"\n        }\n    }\n}'
)
SERVER = (
    '{\n    "Server":{\n        "pbs-srv":{\n            "default_queue":"workq",\n'
    '            "pbs_version":"23.06.06",\n            "job_history_enable":"True"\n        }\n    }\n}'
)


@pytest.fixture
def recorded_pbs(monkeypatch: pytest.MonkeyPatch) -> PBSSite:
    answers = {"pbsnodes": NODES, "-B": SERVER, "-Q": QUEUES}

    def run(self: PBS, *command: str, good: tuple[int, ...] = (0,)) -> str:
        return answers.get(command[0]) or answers[command[1]]

    monkeypatch.setattr(PBS, "run", run)
    return survey(PBS(1))


def written(site: PBSSite, wanted: str | None = None) -> tuple[str, dict[str, Any]]:
    """A profile's text, and what YAML makes of it."""
    text = "\n".join(site.profile("mine", wanted, "2026-11-21"))
    return text, yaml.safe_load(text)


def test_the_default_queue_becomes_a_profile(recorded_pbs: PBSSite) -> None:
    text, values = written(recorded_pbs)
    assert values == {
        "defaults": ["pbs", "_self_"], "name": "mine", "queue": "workq", "gpu_directive": "ngpus",
        "limits": {"nodes": 2, "gpus_per_node": 2, "cpus_per_node": 16, "mem_per_node": "24105M"},
    }  # fmt: skip
    assert text.startswith("# PBS 23.06.06, server pbs-srv, as it was on 2026-11-21")
    assert "# chunk: {gpu_model: a100}  # pbsnodes: nodes differ in gpu_model=a100" in text
    assert "PBS remembers jobs that are over" in text


def test_the_limits_of_a_queue_count_more_than_its_nodes(recorded_pbs: PBSSite) -> None:
    queue = PBSQueue("short", False, True, False, 360600, 1, 16, 0, None)
    text, values = written(replace(recorded_pbs, queues=(*recorded_pbs.queues, queue)), "short")
    assert (values["queue"], values["limits"]["nodes"], values["limits"]["time"]) == ("short", 1, "100:10:00")
    assert "resources_max.walltime" in text
    with pytest.raises(ConfigError, match=r"--queue=shor: there is no such queue\. Did you mean short"):
        written(replace(recorded_pbs, queues=(*recorded_pbs.queues, queue)), "shor")


def test_a_pbs_without_gpus_or_default_queue(recorded_pbs: PBSSite) -> None:
    bare = replace(
        recorded_pbs,
        queues=(replace(recorded_pbs.queues[0], default=False),) * 2,
        nodes=recorded_pbs.nodes[1:],
    )
    _, values = written(bare)
    assert (values["gpu_directive"], values["required"]) == ("none", ["queue"])
