"""Markdown extension for zensical: fits pages that are written for the repository to the site.

A link to a file outside docs/ becomes plain text with the path as its title, because the site has no such file. A
``<picture>`` becomes one image for each colour scheme, because readers can switch the scheme of the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.postprocessors import Postprocessor
from markdown.treeprocessors import Treeprocessor

ROOT = Path(__file__).resolve().parents[3]
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img src="(?P<light>[^"]+)"(?P<rest>[^>]*)>\s*</picture>'
)


class _LinksAsPaths(Treeprocessor):
    def run(self, root: Element) -> None:
        for link in root.iter("a"):
            path = link.get("href", "").partition("#")[0]
            within = path.lstrip("./")
            if path.startswith("../") and (ROOT / within).exists() and not (ROOT / "docs" / within).exists():
                link.tag = "span"
                link.attrib = {"title": f"In the repository: {within}"}


class _ImageForEachScheme(Postprocessor):
    def run(self, text: str) -> str:
        return PICTURE.sub(
            r'<img src="\g<light>#only-light"\g<rest>><img src="\g<dark>#only-dark"\g<rest>>', text
        )


class SiteLinks(Extension):
    """Show links out of docs/ as text, and pictures in the scheme of the site."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - Markdown's name
        md.treeprocessors.register(_LinksAsPaths(md), "links_as_paths", -100)
        md.postprocessors.register(_ImageForEachScheme(md), "image_for_each_scheme", -100)


def makeExtension(**settings: object) -> SiteLinks:  # noqa: N802 - Markdown's name
    return SiteLinks(**settings)
