"""Renders a page as one HTML file that contains plotly's JavaScript, and writes it."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import secrets
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import LauncherError
from launcher.files import run_files
from launcher.reports.figures import Figure
from launcher.reports.parts import Page

if TYPE_CHECKING:
    from jinja2 import Template

HERE = Path(__file__).resolve().parent
MOST_BYTES = 5_000_000


class ReportError(LauncherError):
    """The report page cannot be made or written; the text says why and what to do."""


def render(page: Page) -> str:
    """Returns a page as HTML.

    jinja2 escapes all text. The figures are JSON in which `<`, `>` and `&` are written as \\u003c and so on, so that
    nothing in them can close the script element. Scripts run only with the page's nonce, and the content security
    policy forbids every request (https://www.w3.org/TR/CSP3/). Lone surrogates, which UTF-8 cannot encode, become
    question marks.

    Raises:
        ReportError: plotly is not installed.
    """
    figures: list[Figure] = []

    def place(figure: Figure) -> int:
        figures.append(figure)
        return len(figures) - 1

    text = _template().render(
        page=page, place=place, figures=figures, nonce=secrets.token_urlsafe(16), plotly=packed_plotly
    )
    return text.encode(errors="replace").decode()


@lru_cache(maxsize=1)
def _template() -> Template:
    # Lazily: jinja2 takes 15 ms
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["figure_json"] = _json
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment.get_template("page.html.j2")


def _json(figure: Figure) -> dict[str, Any]:
    return {"data": figure.traces, "layout": {**figure.layout, "height": figure.height}}


def packed_plotly() -> str:
    """Returns the installed plotly's plotly.min.js, compressed with gzip and encoded as base64: a third of its size.

    Raises:
        ReportError: plotly is not installed.
    """
    found = importlib.util.find_spec("plotly")  # not imported, which would take a second
    path = Path(found.origin).parent / "package_data" / "plotly.min.js" if found and found.origin else None
    if path is None or not path.is_file():
        raise ReportError("the report page needs plotly, which is not installed here: pip install 'plotly>=6'")
    return _packed(path)


@lru_cache(maxsize=1)
def _packed(path: Path) -> str:
    return base64.b64encode(gzip.compress(path.read_bytes(), 6, mtime=0)).decode()


def write(path: Path, text: str) -> None:
    """Writes the text of a page to a file, atomically. Only the user can read the file.

    Raises:
        ReportError: the file cannot be written.
    """
    try:
        run_files.replace(path, text.encode(), sync=False)
    except OSError as error:
        why = f"{path} cannot be written ({error.strerror}): choose another place with --output FILE"
        raise ReportError(why) from None
