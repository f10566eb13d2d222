"""Converts the keys of a search to Optuna's distributions, and parameter values to text in overrides and back."""

from __future__ import annotations

from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from launcher.config.search_space import Dimension, Space


def of(space: Space) -> dict[str, BaseDistribution]:
    """Returns for each key of a search the Optuna distribution of its values."""
    return {key: _distribution(each) for key, each in space.items()}


def text(dimension: Dimension, value: Any) -> str:
    """Returns a parameter value of Optuna as the text in an override (`workload.lr=TEXT`)."""
    return value if dimension.choices else dimension.text(value)


def param(dimension: Dimension, written: str) -> Any:
    """Returns the text in an override as a parameter value of Optuna; the inverse of `text`."""
    return written if dimension.choices else int(written) if dimension.whole else float(written)


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.choices:
        return CategoricalDistribution(dimension.choices)
    if dimension.whole:
        low, high, step = int(dimension.low), int(dimension.high), int(dimension.step or 1)
        return IntDistribution(low, high, log=dimension.log, step=step)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log, step=dimension.step)
