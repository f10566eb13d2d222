"""What schedulers check alike in cluster.directives, the extra options of a profile."""

from __future__ import annotations

from typing import Any

from launcher.errors import ConfigError


def require_plain(option: str, value: Any) -> None:
    """Checks that a value of an extra option can stand in a directive line.

    Raises:
        ConfigError: it is neither text, a number, true, false nor null.
    """
    if not (value is None or isinstance(value, (str, int, float, bool))):
        raise ConfigError(f"cluster.directives.{option}: {value!r} is neither text nor a number")
