"""What callbacks for other people's trainers decide, and what is told where a package is missing."""

from __future__ import annotations

import importlib
import sys

import numpy
import pytest
import torch

from launcher.integrations import leaves, numbers


def test_numbers_are_taken_out_of_tensors_too() -> None:
    values = {"loss": torch.tensor(0.5), "many": torch.zeros(2), "steps": 3, "text": "x", "none": None, "one": [1]}
    assert numbers({**values, "f1": numpy.float32(0.25)}) == {"loss": 0.5, "steps": 3.0, "f1": 0.25}


@pytest.mark.parametrize(
    ("stop", "step", "total", "expected"),
    [(None, 3, 9, False), ("x", 3, 9, True), ("x", 3, 0, True), ("x", 9, 9, False), (None, 9, 9, False)],
)
def test_who_is_at_the_end_anyway_does_not_leave_before(
    stop: str | None, step: int, total: int, expected: bool
) -> None:
    assert leaves(stop, step, total) is expected


@pytest.mark.parametrize("package", ["lightning", "transformers"])
def test_a_missing_package_is_an_error_with_what_to_type(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"launcher.integrations.{package}", raising=False)
    with pytest.raises(ImportError, match=rf"needs the package {package}: pip install 'launcher\[{package}\]'"):
        importlib.import_module(f"launcher.integrations.{package}")
