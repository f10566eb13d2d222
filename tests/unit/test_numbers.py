"""A number of the schema that is less than 0, or none, is refused by its name before anything is submitted."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from launcher.config.keys import WORKLOADS
from launcher.errors import ConfigError
from launcher.submission.prepare import Inputs, planned
from tests.unit.plans import SITE, hook_of, make_config

OWN = {"program": {"script": "train.py"}, "function": {"target": "json:dumps", "kwargs": {"obj": 1}}}


def changed(section: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each number below a section made less than 0, or none: the key, and the section with it."""
    for name, hint in get_type_hints(type(section)).items():
        value = getattr(section, name)
        if dataclasses.is_dataclass(value):
            for key, inner in changed(value, f"{prefix}{name}."):
                yield key, dataclasses.replace(section, **{name: inner})
        for kind, wrong in ((int, -3), (float, -0.5), (float, math.nan)):
            if kind in (hint, *get_args(hint)):
                yield f"{prefix}{name}", dataclasses.replace(section, **{name: wrong})


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_number_is_less_than_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    config = make_config(
        workload=WORKLOADS[name](name, "m:f", 2, seed=0, hook=hook_of(name), **OWN.get(name, {})), nodes=2
    )
    planned(config, SITE, Inputs())
    tried = list(changed(config))
    assert {"nodes", "workload.seed", "checkpoint.keep", "cluster.limits.nodes"} <= {key for key, _ in tried}
    for key, wrong in tried:
        with pytest.raises(ConfigError, match=key.rpartition(".")[2]):
            planned(wrong, SITE, Inputs())
