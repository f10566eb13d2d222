"""What a line of the user's own files means to Hydra."""

from __future__ import annotations

from typing import Any

import pytest

from hydra_plugins.launcher_user_config import hydra_configs
from launcher.paths import GROUPS


@pytest.mark.parametrize(
    ("values", "meant"),
    [
        ({"nodes": 2}, [{"nodes": 2}]),
        ({"cluster": {"account": "me"}}, [{"cluster": {"account": "me"}}]),
        ({"cluster.limits.nodes": 2}, [{"cluster": {"limits": {"nodes": 2}}}]),
        ({"cluster": "slurm"}, [{"defaults": [{"override /cluster": "slurm"}]}]),
        ({"workload": None}, [{"defaults": [{"override /workload": None}]}]),
        (
            {"defaults": ["a"], "env": "mine", "nodes": 1},
            [{"defaults": ["a"]}, {"nodes": 1}, {"defaults": ["a", {"override /env": "mine"}]}],
        ),
        (
            {"defaults": None, "env": "mine"},  # `defaults:` with nothing behind it
            [{"defaults": None}, {"defaults": [{"override /env": "mine"}]}],
        ),
    ],
)
def test_a_line_is_part_of_a_config(values: dict[str, Any], meant: list[dict[str, Any]]) -> None:
    assert list(hydra_configs(values, GROUPS)) == meant


def test_a_file_of_a_group_chooses_none() -> None:
    assert list(hydra_configs({"env": "text"}, ())) == [{"env": "text"}]
