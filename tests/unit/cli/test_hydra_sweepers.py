"""Sweepers that search: what they need of a sweep, and Optuna's memory of what was tried."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from hydra_plugins.launcher_optuna import OptunaSearchSweeper
from launcher.cli.hydra_sweepers import PointFailed, Search, objectives, values_of
from launcher.cli.multirun import Multirun
from launcher.cli.submit import CommandLine
from launcher.config.points import space_of
from launcher.config.schema import BestIs, Config, Sweep
from launcher.config.search_space import Method, overrides
from launcher.errors import ConfigError
from launcher.runs import sweep_directory
from launcher.sweeps.prepare import RequestedPoint
from tests.unit.plans import make_config

COMMAND = ["workload.lr=interval(0,1)"]


def config(**sweep: Any) -> Config:
    return Config(sweep=Sweep(**{"objective": "accuracy", **sweep}))


def settled(search: Search, given: Config, *words: str, sweep_id: str | None = None) -> Sweep:
    return search.settle(given, [*COMMAND, *words], sweep_id).sweep


@pytest.mark.parametrize(("direction", "best_is"), [("maximize", BestIs.max), ("minimize", BestIs.min)])
def test_the_direction_says_which_value_is_the_best(direction: str, best_is: BestIs) -> None:
    assert settled(Search((direction,)), config()).best_is is best_is


def test_what_was_given_stays_and_the_rest_is_the_searchs() -> None:
    search = Search(("minimize",), trials=6, workers=2)
    least = {"objective": "accuracy", "best_is": BestIs.min}
    assert settled(search, config(), sweep_id="lr-1") == Sweep("lr-1", parallelism=2, **least)
    assert settled(search, config(id="mine", parallelism=1)) == Sweep("mine", parallelism=1, **least)


def test_a_sweeper_without_a_direction_changes_nothing() -> None:
    assert settled(Search(), config(best_is=BestIs.min)) == Sweep(objective="accuracy", best_is=BestIs.min)


@pytest.mark.parametrize(
    ("given", "directions", "words", "told"),
    [
        (config(objective=None), ("maximize",), [], "sweep.objective=accuracy"),
        (config(search=Method.asha), ("maximize",), [], "exclude each other"),
        (config(objective=["a", "b"]), ("maximize",), [], r"direction=\[maximize,maximize\]"),
        (config(), ("minimize", "minimize"), [], "1 and hydra.sweeper.direction 2"),
        (config(best_is=BestIs.max), ("minimize",), ["sweep.best_is=max"], "contradict each other"),
        (dataclasses.replace(config(), wait=False), ("maximize",), [], "leave wait=false"),
        (dataclasses.replace(config(), dry_run=True), ("maximize",), [], "dry_run"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    given: Config, directions: tuple[str, ...], words: list[str], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        settled(Search(directions), given, *words)


@pytest.mark.parametrize(
    ("sweeper", "told"),
    [
        ({"direction": "maximise"}, "Did you mean maximize"),
        ({"direction": ["minimize", "up"]}, "direction=up"),
        ({"n_jobs": 0}, "n_jobs=0"),
        ({"n_trials": -1}, "n_trials=-1"),
    ],
)
def test_a_sweepers_own_bad_values_are_refused(sweeper: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Search.of(OmegaConf.create(sweeper))


def test_what_a_sweeper_says() -> None:
    sweeper = OmegaConf.create({"direction": ["minimize", "maximize"], "n_trials": 6, "n_jobs": 2})
    assert Search.of(sweeper) == Search(("minimize", "maximize"), 6, 2)
    assert Search.of(OmegaConf.create({"direction": "minimize"})) == Search(("minimize",))
    assert Search.of(OmegaConf.create({})) == Search()


def test_objectives_are_one_or_several() -> None:
    assert objectives("accuracy") == ("accuracy",)
    assert objectives(["a", "b"]) == ("a", "b")
    assert objectives(None) == ()


def test_the_objective_is_taken_from_the_metrics() -> None:
    assert values_of({"loss": 1, "accuracy": 0.5}, ["accuracy", "loss"], "lr-1/0") == [0.5, 1.0]
    with pytest.raises(ConfigError, match=r"lr-1/0 has no such metric. Did you mean accuracy\?"):
        values_of({"accuracy": 0.5}, ["acuracy"], "lr-1/0")


@pytest.mark.parametrize("value", [math.nan, "high", None, True])
def test_what_is_no_number_is_a_failed_trial(value: Any) -> None:
    with pytest.raises(PointFailed, match="and no number"):
        values_of({"accuracy": value}, ["accuracy"], "lr-1/0")


# -- Optuna


def test_without_optuna_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'launcher\[optuna\]'"):
        OptunaSearchSweeper().setup(hydra_context=None, task_function=None, config=None)  # type: ignore[arg-type]


@pytest.fixture
def optuna_search() -> Any:
    pytest.importorskip("optuna", reason="pip install 'launcher[optuna]'")
    from launcher.cli import optuna_search

    return optuna_search


@pytest.mark.parametrize(
    ("point", "params"),
    [
        (["workload=p2p", "a=0.30233257263183977", "b=x", "c=3"], {"a": 0.30233257263183977, "b": "x", "c": 3}),
        (["workload=p2p", "a=1e-05", "b=2", "c=0"], {"a": 1e-05, "b": "2", "c": 0}),
        (["workload=p2p", "a=0.1", "b=x", "c=3", "extra=1.5"], {"a": 0.1, "b": "x", "c": 3, "extra": 1.5}),
        (["workload=p2p", "a=0.1", "b=y", "c=3"], None),  # no such choice any more
        (["workload=p2p", "a=0.1", "b=x"], None),
        (["workload=collective", "a=0.1", "b=x", "c=3"], None),
        (["a=0.1", "b=x", "c=3"], None),
    ],
)
def test_a_point_is_a_trial_again(optuna_search: Any, point: list[str], params: dict[str, Any] | None) -> None:
    space = space_of(["a=interval(0,1)", "b=choice(x,2)", "c=range(0,4)"])[0]
    assert optuna_search.params_of(point, space, ["workload=p2p", "sweep.objective=loss"]) == params


def test_a_point_with_a_secret_is_a_trial_again(
    optuna_search: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = "+cluster.environment.API_TOKEN=typed-secret"
    space, fixed = space_of(["a=interval(0,1)", typed])
    given = make_config(
        cluster={"scheduler": "local", "environment": {"API_TOKEN": "typed-secret"}}, runs_dir=str(tmp_path)
    )
    multirun = object.__new__(Multirun)
    multirun._command = CommandLine((), yes=False)

    def requested(words: list[str], *_: object) -> RequestedPoint:
        return RequestedPoint(tuple(words), given, {})

    monkeypatch.setattr(multirun, "_requested", requested)
    _, written = multirun.sweep_of(["a=0.5", *fixed])
    assert written == ("a=0.5", "+cluster.environment.API_TOKEN=${oc.env:API_TOKEN}")
    fixed = optuna_search.fixed_of(written, space)
    assert optuna_search.params_of(sweep_directory.canonical(written), space, fixed) == {"a": 0.5}


def test_a_trial_that_was_asked_for_is_asked_for_again_to_the_letter(optuna_search: Any) -> None:
    """Or its point would be another one, and run twice."""
    from launcher.search.search import distributions_of

    optuna = optuna_search.optuna
    space, fixed = space_of(
        ["lr=interval(1e-6,1)", "width=int(interval(1,64))", "sync=choice(ddp,manual)", "p=range(0,1,0.1)", "seed=3"]
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))

    def asked() -> tuple[str, ...]:
        return overrides(optuna_search.written(study.ask(distributions_of(space)).params, space), fixed)

    before = [asked() for _ in range(20)]
    for each in before:
        study.enqueue_trial(optuna_search.params_of(each, space, fixed))
    assert [asked() for _ in range(20)] == before


def test_the_best_point_is_printed_with_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    """A key of a function's arguments has a plus, which the point's overrides are shown without."""
    optuna = pytest.importorskip("optuna")
    from launcher.cli import optuna_search

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    key = "++workload.kwargs.lr"
    study = optuna.create_study()
    study.add_trial(
        optuna.trial.create_trial(
            params={key: 0.25}, distributions={key: optuna.distributions.FloatDistribution(0, 1)}, value=0.5
        )
    )
    manifest = SimpleNamespace(objective=["loss"], points=[(f"{key}=0.25",)])
    sweep: Any = SimpleNamespace(id="lr-1", manifest=lambda: manifest)
    optuna_search._print_best(sweep, study, {}, [])
    assert capsys.readouterr().out.splitlines()[0] == "best  point 0, loss 0.5: kwargs.lr=0.25"
