"""The pages: all are listed, links between them lead somewhere, and the reference is the schema's."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import yaml

from tests.launch import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
LINK = re.compile(r"\]\(([^)#\s]+)?(?:#([^)\s]+))?\)")


def test_the_reference_is_what_the_schema_says() -> None:
    assert (DOCS / "config.md").read_text() == runpy.run_path(str(DOCS / "reference.py"))["page"](), "run `make docs`"


def test_every_page_is_in_the_index_and_in_the_site() -> None:
    names = {page.name for page in PAGES}
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    groups = [next(iter(entry.values())) if isinstance(entry, dict) else [entry] for entry in nav]
    assert sorted(page for group in groups for page in group) == sorted(names)
    assert {name for name, _ in LINK.findall((DOCS / "index.md").read_text())} >= names - {"index.md"}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        path = page.parent / target if target else page
        assert path.exists(), target
        if anchor:
            assert anchor in _anchors(path.read_text()), f"{target}#{anchor}"


def _anchors(text: str) -> set[str]:
    """As GitHub and mkdocs make them."""
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}
