"""What the profiles of all sites share."""

from __future__ import annotations

import pytest
import yaml

from launcher.schedulers.site import scalar


@pytest.mark.parametrize(
    ("value", "text"),
    [("gpu", "gpu"), ("a b", '"a b"'), ("no", '"no"'), ("1h", '"1h"'), ("x: y", '"x: y"'), (4, "4"), ("a#b", '"a#b"')],
)
def test_every_value_is_read_back_as_it_was(value: object, text: str) -> None:
    assert scalar(value) == text
    assert yaml.safe_load(f"key: {scalar(value)}  # where from") == {"key": value}
