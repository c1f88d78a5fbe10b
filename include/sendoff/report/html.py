"""Documents as HTML: blocks to stand in any page, and a page that stands alone and asks for nothing from anywhere.

Bars are rectangles whose places are attributes and whose colours are classes of ``report.css``, so that a page needs
neither a script nor a style of its own. Each chart has its numbers beside it or in a table behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from sendoff.figures import share
from sendoff.report.model import Block, Code, Document, Link, Section, Words, inlines
from sendoff.report.whole_file import whole_file
from sendoff.states import Verdict

_MODE = 0o644  # what the page says names nobody


def as_html(document: Document) -> str:
    """Return a document as a page of HTML, complete in itself."""
    return _environment().get_template("page.html").render(document=document, css=Markup(css()))  # noqa: S704 - ours


def sections_as_html(sections: Sequence[Section]) -> Markup:
    """Return sections as HTML to stand in a page that has :func:`css`."""
    return _rendered("sections", sections)


def blocks_as_html(blocks: Sequence[Block]) -> Markup:
    """Return blocks as HTML to stand in a page that has :func:`css`."""
    return _rendered("blocks", blocks)


@cache
def css() -> str:
    """Return the style of blocks: their colours in light and dark, and how they are shown."""
    return Path(__file__).with_name("report.css").read_text()


def write_html(document: Document, path: Path) -> Path:
    """Write a document as a page into a file, in place of one that is there. The folder is made if need be."""
    with suppress(OSError):  # writing the file says what is wrong
        path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, _MODE) as file:
        file.write(as_html(document).encode())
    return path


def _words(words: Words) -> Markup:
    return Markup().join(map(_inline, inlines(words)))


def _inline(part: str | Code | Link) -> Markup:
    match part:
        case Code():
            return Markup("<code>{}</code>").format(part.text)
        case Link():
            return Markup('<a href="{}">{}</a>').format(part.url, part.text)
        case _:
            return escape(part)


def _rendered(macro: str, parts: Sequence[Section] | Sequence[Block]) -> Markup:
    template = _environment().get_template("blocks.html")
    return Markup(getattr(template.module, macro)(parts))  # noqa: S704 - the template escapes what it is given


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
