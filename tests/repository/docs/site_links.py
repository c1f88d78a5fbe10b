"""Links of the site that lead out of docs/, where the site has nothing: they become the path in the repository.

An extension of Markdown, for zensical: where the pages are read in the repository, the links work as they are.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

ROOT = Path(__file__).resolve().parents[3]


class _AsPaths(Treeprocessor):
    def run(self, root: Element) -> None:
        for link in root.iter("a"):
            path = link.get("href", "").partition("#")[0]
            within = path.lstrip("./")
            if path.startswith("../") and (ROOT / within).exists() and not (ROOT / "docs" / within).exists():
                link.tag = "span"
                link.attrib = {"title": f"In the repository: {within}"}


class OutOfDocs(Extension):
    """Shows links out of docs/ as words, with the path as their title."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - Markdown calls it so
        md.treeprocessors.register(_AsPaths(md), "out_of_docs", -100)


def makeExtension(**settings: object) -> OutOfDocs:  # noqa: N802 - Markdown calls it so
    return OutOfDocs(**settings)
