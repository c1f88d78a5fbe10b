"""The colours, type and spacing that all pages and pictures share: the custom properties of ``tokens.css``.

The local service shares no code with Sendoff, so it has a copy of the file. A test compares both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_COLOUR = re.compile(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)")


@cache
def tokens() -> str:
    """Return the style sheet of the tokens."""
    return Path(__file__).with_name("tokens.css").read_text()


@cache
def light_colours() -> Mapping[str, str]:
    """Return the colours for light pages and for paper, by the name of the token."""
    return {name: light for name, light, _ in _COLOUR.findall(tokens())}
