"""Markdown of our own as HTML: tables and code, no HTML of anybody else's, and no style in the page."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markupsafe import Markup

_reader = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["link", "autolink", "image"])


def as_html(text: str) -> Markup:
    """Give Markdown as HTML; columns of numbers get the class ``number`` instead of a style, titles begin lower."""
    tokens = _reader.parse(text)
    for token in tokens:
        if token.attrs.pop("style", None):
            token.attrSet("class", "number")
        if token.type == "table_open":
            token.attrSet("class", "grid")
        if token.type == "fence":
            token.info = ""
    return Markup(_reader.renderer.render(tokens, _reader.options, {}))  # noqa: S704  # html is off: all is escaped
