"""What a line of the user's own files means to Hydra."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from hydra_plugins.launcher_user_config import hydra_configs
from launcher.errors import ConfigError
from launcher.paths import GROUPS, user_cache_dir, user_config_dir, user_data_dir


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


@pytest.mark.parametrize("folder", [user_cache_dir, user_config_dir, user_data_dir])
def test_who_has_no_home_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch, folder: Callable[[], Path]) -> None:
    def unknown(path: str) -> str:
        raise RuntimeError(f"could not determine the home directory for {path!r}, set an absolute HOME")

    for variable in ("LAUNCHER_CONFIG_DIR", "LAUNCHER_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    for kind in ("cache", "config", "data"):
        monkeypatch.setattr(platformdirs, f"user_{kind}_path", unknown)
    with pytest.raises(ConfigError, match="could not determine the home directory"):
        folder()
