"""Structs behave like frozen dataclasses, for `dataclasses` as well, and are none until somebody asks."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from typing import Any

import pytest

from launcher.fast_dataclasses import Struct, replace
from launcher.paths import PACKAGE


class Point(Struct):
    """What the tests make."""

    x: int
    y: int = 0


class Named(Point):
    """One with fields of its base class."""

    name: str = ""
    of: Point | None = None


@pytest.mark.parametrize(
    ("positional", "named"), [((), {}), ((), {"y": 1}), ((1,), {"z": 2}), ((1, 2, 3), {})], ids=str
)
def test_fields_that_are_missing_or_unknown_are_refused(positional: tuple[int, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="Point has the fields x, y"):
        Point(*positional, **named)


def test_equal_fields_make_equal_structs_of_the_same_class() -> None:
    assert Point(1) == Point(x=1, y=0) and hash(Point(1)) == hash(Point(x=1, y=0))
    assert Point(1) != Point(2) and Point(1) != Named(1) and Point(1) != (1, 0)
    assert repr(Named(1, name="a")) == "Named(x=1, y=0, name='a', of=None)"


@pytest.mark.parametrize("function", [replace, dataclasses.replace])
def test_a_copy_differs_in_some_fields(function: Any) -> None:
    named = Named(1, name="a")
    assert function(named, y=5) == Named(1, 5, "a") and named.y == 0
    with pytest.raises(TypeError):
        function(named, z=1)


def test_dataclasses_knows_the_fields() -> None:
    assert [each.name for each in dataclasses.fields(Named)] == ["x", "y", "name", "of"]
    assert dataclasses.asdict(Named(1, of=Point(2))) == {"x": 1, "y": 0, "name": "", "of": {"x": 2, "y": 0}}


def test_a_struct_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Named(1, of=Point(2)))) == Named(1, of=Point(2))


def test_a_driver_and_its_events_load_no_slow_modules() -> None:
    code = (
        f"import sys; sys.path.append({str(PACKAGE.parent)!r})\n"
        "from launcher.job import driver\n"
        "from launcher.runs import event_files\n"
        "event_files.entry(driver.Started(job='1'))\n"
        "slow = {'dataclasses', 'inspect', 'ctypes', 'hashlib', 'torch', 'hydra', 'submitit', 'jinja2', 'yaml'}\n"
        "print(*slow & {*sys.modules})"
    )
    assert subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
