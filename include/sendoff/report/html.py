"""Render documents as HTML: as parts of another page, or as one page that loads nothing else.

Bars are rectangles with their positions as attributes and their colours as classes of ``report.css``. A page needs no
script and no inline styles. Each chart has its numbers beside it or in a table that can be opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from sendoff.figures import share
from sendoff.report.model import Block, Code, Document, Inline, Link, Moment, Section, Words, inlines
from sendoff.report.tokens import tokens
from sendoff.report.whole_file import page_file
from sendoff.states import Verdict

_FRAGMENT = Markup("<h3>{title}</h3><p>{subtitle}</p><p class=pale>{caption}</p>{lead}{sections}")
# A notebook may be light while the browser prefers dark, so the background is part of the document.
_FRAGMENT_CSS = """
max-width:800px;padding:4px 16px 12px;background:var(--ground);color:var(--ink);font:14px/1.5 var(--face);
h2{font-size:1.1rem;margin:20px 0 6px}h3{font-size:1.3rem;margin:8px 0 0}p{margin:0 0 .4rem}
table{border:0;margin:0;font-size:inherit}tr,td,th,tbody tr:nth-child(odd){background:none;text-align:left}
td.number,th.number{text-align:right}
"""


def as_html(document: Document) -> str:
    """Return a document as an HTML page that loads nothing else."""
    return _environment().get_template("page.html").render(document=document, css=Markup(css()))  # noqa: S704 - ours


def as_fragment(document: Document) -> str:
    """Return a document as HTML for a page of others, such as a notebook. Its styles affect only itself."""
    parts = {
        "title": _words(document.title),
        "subtitle": _words(document.subtitle),
        "caption": document.caption,
        "lead": blocks_as_html(document.lead),
        "sections": sections_as_html(document.sections),
    }
    return f"<div class=sendoff><style>{_nested_css()}</style>{_FRAGMENT.format(**parts)}</div>"


def _nested_css() -> str:
    """Return the style sheet so that it applies only within the element of a document."""
    return f".sendoff{{{css().replace(':root', '&')}{_FRAGMENT_CSS}}}"


def sections_as_html(sections: Sequence[Section]) -> Markup:
    """Return sections as HTML for a page that includes :func:`css`."""
    return _rendered("sections", sections)


def blocks_as_html(blocks: Sequence[Block], name: str = "lead") -> Markup:
    """Return blocks as HTML for a page that includes :func:`css`. ``name``: begins the IDs of their elements."""
    return _rendered("blocks", blocks, name)


@cache
def css() -> str:
    """Return the style sheet of the blocks, with colours for light and dark mode."""
    return tokens() + Path(__file__).with_name("report.css").read_text()


def write_html(document: Document, path: Path) -> Path:
    """Write a document to a file as an HTML page and return the path. Replace the file, and create its folder."""
    with page_file(path) as file:
        file.write(as_html(document).encode())
    return path


def _words(words: Words) -> Markup:
    return Markup().join(map(_inline, inlines(words)))


def _inline(part: Inline) -> Markup:
    match part:
        case Code():
            return Markup("<code>{}</code>").format(part.text)
        case Link():
            return Markup('<a href="{}">{}</a>').format(part.url, part.text)
        case Moment():
            return Markup('<time datetime="{}">{}</time>').format(
                part.at.astimezone(UTC).isoformat(), part.text
            )
        case _:
            return escape(part)


def _rendered(macro: str, parts: Sequence[Section] | Sequence[Block], *more: str) -> Markup:
    template = _environment().get_template("blocks.html")
    return Markup(getattr(template.module, macro)(parts, *more))  # noqa: S704 - the template escapes what it is given


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["verdicts"] = list(Verdict)
    environment.filters |= {
        "words": _words,
        "share": share,
        "count": "{:,}".format,
        "percent": "{:.3f}%".format,
        "slug": lambda name: name.replace("_", "-"),
        "capitalize_first": lambda text: text[:1].upper() + text[1:],
        "kind": lambda block: type(block).__name__.lower(),
    }
    return environment
