"""Writes docs/config.md, every key of the config, from the schema: `python docs/reference.py`."""

from __future__ import annotations

import dataclasses
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

from launcher import config
from launcher.cli.schema import SECTIONS, Section, keys_of

PAGE = Path(__file__).with_name("config.md")
HEAD = """\
# Every key

`python -m launcher --help` has the same words. A key is set on the command line (`nodes=2 workload.lr=0.1`), in
`~/.config/launcher/user.yaml`, or in a profile of your own; `--cfg job` shows what they come to together.

This page is made from the schema (launcher/config.py) by `make docs`.
"""


def page() -> str:
    """The page's text."""
    parts = [HEAD]
    for section in SECTIONS:
        parts += _section(section)
    return "\n".join(parts)


def _section(section: Section) -> list[str]:
    kind, prefix = section.kind, section.prefix
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    words = (kind.__doc__ or "").strip()
    lines = ["", f"## {section.title}", "", words, "", "| key | default | meaning |", "|---|---|---|"]
    for key in keys_of(kind, prefix):
        hint, field = hints[key.name.removeprefix(prefix)], fields[key.name.removeprefix(prefix)]
        if dataclasses.is_dataclass(hint):  # a section of its own
            continue
        lines.append(f"| `{key.name}` | {_default(field)} | {_cell(key.doc)}{_choices(hint, key.doc)} |")
    return lines


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value is None:
        return ""
    if value == config.MISSING:
        return "in conf/"
    words = value.value if isinstance(value, Enum) else str(value).lower() if isinstance(value, bool) else value
    return f"`{_cell(str(words))}`"


def _choices(hint: Any, doc: str) -> str:
    """The values of an enum that its words do not list."""
    kinds = [kind for kind in (hint, *get_args(hint)) if isinstance(kind, type) and issubclass(kind, Enum)]
    missing = [value.value for kind in kinds for value in kind if value.value not in doc]
    return f" ({', '.join(missing)})" if missing else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
