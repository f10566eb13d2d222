"""The submission of searches: which points stand for all, what is refused, and what the directory has."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from launcher.config.compose_points import space_of
from launcher.config.schema import Asha, BestIs, Config, SearchBudget, Sweep
from launcher.config.search_space import Goal, Method
from launcher.errors import ConfigError
from launcher.sweeps.prepare import representatives, with_search_defaults


def config(**sweep: Any) -> Config:
    return Config(sweep=Sweep(**{"search": Method.asha, "objective": "accuracy", **sweep}))


def test_each_value_of_each_key_is_tried_by_itself() -> None:
    space, fixed = space_of(["workload=ddp_mnist", "lr=interval(0,1)", "kind=a,b,c"])
    assert representatives(space, fixed) == [
        ("workload=ddp_mnist", "lr=0.0", "kind=a"),
        ("workload=ddp_mnist", "lr=1.0", "kind=a"),
        ("workload=ddp_mnist", "lr=0.0", "kind=b"),
        ("workload=ddp_mnist", "lr=0.0", "kind=c"),
    ]


@pytest.mark.parametrize(
    ("given", "goal", "best_is"),
    [
        ({}, Goal.maximize, BestIs.max),
        ({"best_is": BestIs.min}, Goal.minimize, BestIs.min),
        ({"goal": Goal.minimize}, Goal.minimize, BestIs.min),
    ],
)
def test_what_is_not_given_follows(given: dict[str, Any], goal: Goal, best_is: BestIs) -> None:
    sweep = with_search_defaults(config(**given)).sweep
    assert (sweep.goal, sweep.best_is) == (goal, best_is)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"objective": None}, "sweep.objective=accuracy"),
        ({"objective": ["a", "b"]}, "by a metric"),
        ({"asha": Asha(reduction_factor=1)}, "sweep.asha.reduction_factor=1: it must be 2 or more"),
        ({"budget": SearchBudget(gpu_hours=0.0)}, "sweep.budget.gpu_hours=0.0: it must be more than 0"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        with_search_defaults(config(**given))


def test_without_optuna_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"needs Optuna: pip install 'launcher\[optuna\]'"):
        with_search_defaults(config())


def test_sweeps_without_a_search_need_no_optuna() -> None:
    code = "import sys; import launcher.cli.multirun, launcher.sweeps.control; print('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
