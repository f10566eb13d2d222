"""Loads the templates of job scripts with jinja2, quotes what they print, and validates a profile's extra options."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from launcher.errors import ConfigError, near
from launcher.paths import resource
from launcher.plan.plan import CONTROL, JobPlan

if TYPE_CHECKING:
    import jinja2

    from launcher.schedulers.base import JobVariables


class Raw(str):
    """Shell code: a set-up line of a profile, a rendered block (`{{ super() }}`). Any other text is quoted."""

    __slots__ = ()


def quote(value: Any) -> str:
    """Returns a value as one shell word, `Raw` unchanged; raises ValueError: control characters."""
    if isinstance(value, Raw):
        return value
    text = str(value)
    if match := CONTROL.search(text):
        raise ValueError(f"refusing to write the control character {match[0]!r} of {text!r} into a script")
    return shlex.quote(text)


def command(words: Sequence[Any]) -> Raw:
    """Returns the shell code of a command, with each word quoted (except `Raw` ones)."""
    return Raw(" ".join(map(quote, words)))


def shell_text(variables: JobVariables) -> dict[str, Raw]:
    return {name: Raw(getattr(variables, name)) for name in ("job_id", "element_id", "index", "output", "signals")}


def template(name: str) -> jinja2.Template:
    return environment().get_template(name)


def _no_field(part: object, name: object) -> str | None:
    # Why an expression of a template is undefined, if it looks for a field of the plan or of a section of it
    parts = {"a plan": JobPlan, **{f"a plan's {section}": kind for section, kind in get_type_hints(JobPlan).items()}}
    what = next((what for what, kind in parts.items() if is_dataclass(kind) and kind is type(part)), None)
    return what and f"{what} has no {name}.{near(str(name), list(vars(part)))}"


def raw(value: Any) -> Raw:
    """The filter `raw` of templates: returns shell code unchanged; raises ValueError for any other value."""
    if isinstance(value, Raw):
        return value
    raise ValueError(f"{str(value)!r} is a value and no shell code: leave the filter raw out, and it is quoted")


@functools.cache
def environment() -> jinja2.Environment:
    import jinja2

    class Environment(jinja2.Environment):
        # jinja2 passes the text of a block to `finalize` again if another template prints it (`{{ super() }}`).
        concat = staticmethod(lambda parts: Raw("".join(parts)))

    class Undefined(jinja2.StrictUndefined):
        def __init__(self, hint: str | None = None, **details: Any) -> None:
            super().__init__(hint or _no_field(details.get("obj"), details.get("name")), **details)

    def load(name: str) -> tuple[str, str, Callable[[], bool]] | None:
        own = Path(name)
        path = own if own.is_absolute() else resource("templates") / name
        try:
            return path.read_text(), str(path), lambda: not own.is_absolute()
        except OSError:
            return None

    environment = Environment(
        loader=jinja2.FunctionLoader(load),
        finalize=quote,
        undefined=Undefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["raw"] = raw
    return environment


def require_plain(option: str, value: Any) -> None:
    """Raises ConfigError if the value of an extra option cannot be written in a directive line."""
    if not (value is None or isinstance(value, (str, int, float, bool))):
        raise ConfigError(f"cluster.directives.{option}: {value!r} is neither text nor a number")
