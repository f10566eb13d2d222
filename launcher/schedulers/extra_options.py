"""Validation of cluster.directives, a profile's extra options, that all schedulers share."""

from __future__ import annotations

from typing import Any

from launcher.errors import ConfigError


def require_plain(option: str, value: Any) -> None:
    """Checks that the value of an extra option can be written in a directive line.

    Raises:
        ConfigError: the value is not text, a number, true, false or null.
    """
    if not (value is None or isinstance(value, (str, int, float, bool))):
        raise ConfigError(f"cluster.directives.{option}: {value!r} is neither text nor a number")
