"""Marks single values of a parametrized test, by the rule in `tests.conftest`: `parametrize("ranks", [2, ci(3)])`."""

from functools import partial

import pytest

ci = partial(pytest.param, marks=pytest.mark.ci)
slow = partial(pytest.param, marks=pytest.mark.slow)
