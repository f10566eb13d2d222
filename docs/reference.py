"""Writes docs/config.md, every key of the config, from the schema: `python docs/reference.py`."""

from __future__ import annotations

from pathlib import Path

from launcher.config.keys import Key, KeySection, keys_of, sections

PAGE = Path(__file__).with_name("config.md")
HEAD = """\
# Every key

`launcher help --all` shows the same list, and `help KEY` one key. Set keys on the command line
(`nodes=2 workload.lr=0.1`), in `~/.config/launcher/user.yaml`, or in your own profile; `--cfg job` shows the resulting
config.

This page is made from the schema (launcher/config/schema.py, and settings.py of each scheduler) by `make docs`.
"""


def page() -> str:
    """Returns the text of the page."""
    parts = [HEAD]
    for section in sections():
        parts += _section(section)
    return "\n".join(parts)


def _section(section: KeySection) -> list[str]:
    words = (section.kind.__doc__ or "").strip()
    lines = ["", f"## {section.title}", "", words, "", "| key | default | meaning |", "|---|---|---|"]
    for key in keys_of(section.kind, section.prefix):
        if not key.section:
            lines.append(f"| `{key.name}` | {_default(key)} | {_cell(key.meaning)} |")
    return lines


def _default(key: Key) -> str:
    if key.default is None:
        return "in conf/"
    return "" if key.default == "null" else f"`{_cell(key.default)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
