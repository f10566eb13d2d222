"""Writes docs/config.md, every key of the config, from the schema: `python docs/reference.py`."""

from __future__ import annotations

from pathlib import Path

from launcher.config.keys import Key, Section, keys_of, sections

PAGE = Path(__file__).with_name("config.md")
HEAD = """\
# Every key

`launcher help --all` has the same words, and `help KEY` those of one. A key is set on the
command line (`nodes=2 workload.lr=0.1`), in `~/.config/launcher/user.yaml`, or in a profile of your own; `--cfg job`
shows what they come to together.

This page is made from the schema (launcher/config/schema.py, and settings.py of each scheduler) by `make docs`.
"""


def page() -> str:
    """The page's text."""
    parts = [HEAD]
    for section in sections():
        parts += _section(section)
    return "\n".join(parts)


def _section(section: Section) -> list[str]:
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
