"""Markdown extension for zensical: fits pages that are written for the repository to the site.

A link to a file outside docs/ becomes plain text with the path as its title, because the site has no such file. An
image that has a dark version (``NAME-dark.png`` beside ``NAME.png``) is shown in the colour scheme of the site, and
links to its full size.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

ROOT = Path(__file__).resolve().parents[3]
PICTURES = ROOT / "docs/pictures"


class _LinksAsPaths(Treeprocessor):
    def run(self, root: Element) -> None:
        for link in root.iter("a"):
            path = link.get("href", "").partition("#")[0]
            within = path.lstrip("./")
            if path.startswith("../") and (ROOT / within).exists() and not (ROOT / "docs" / within).exists():
                link.tag = "span"
                link.attrib = {"title": f"In the repository: {within}"}


class _ImageForEachScheme(Treeprocessor):
    def run(self, root: Element) -> None:
        for parent in list(root.iter()):
            for image in parent.findall("img"):
                source = image.get("src", "")
                name, _, kind = source.rpartition(".")
                if not (PICTURES / f"{PurePosixPath(name).name}-dark.{kind}").exists():
                    continue
                place = list(parent).index(image)
                light = _linked(image, source, "light")
                dark = _linked(image, f"{name}-dark.{kind}", "dark")
                dark.tail = image.tail
                parent.remove(image)
                parent.insert(place, light)
                parent.insert(place + 1, dark)


def _linked(image: Element, source: str, scheme: str) -> Element:
    link = Element("a", {"href": source})
    link.append(Element("img", {**image.attrib, "src": f"{source}#only-{scheme}"}))
    return link


class SiteLinks(Extension):
    """Show links out of docs/ as text, and pictures in the scheme of the site."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - Markdown's name
        md.treeprocessors.register(_LinksAsPaths(md), "links_as_paths", -100)
        md.treeprocessors.register(_ImageForEachScheme(md), "image_for_each_scheme", -110)


def makeExtension(**settings: object) -> SiteLinks:  # noqa: N802 - Markdown's name
    return SiteLinks(**settings)
