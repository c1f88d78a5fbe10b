"""Generate docs/reference/commands.md and service-commands.md from typer's own description of the commands."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

import typer
from typer.cli import get_docs_for_click
from typer.main import get_command

_HEAD = """\
# Commands

All commands of `sendoff`. An [error](errors.md) is printed as one line on standard error, with exit code 1. With
`SENDOFF_LOG_FORMAT=json`, that line is JSON. Wrong usage, such as options that exclude each other, ends with exit code
2. `sendoff preview` ends with exit code 3 if a run would not send the launch that it shows. `sendoff check` ends with
exit code 1 if a campaign has a mistake, and `sendoff diff --exit-code` with 3 if something changes. `sendoff send` ends
with 3 if the launch must not be sent now:
[all its exit codes](../tutorial/from-a-shell.md#from-cron). Ctrl-C ends a command with 130. `sendoff receiver` and
`sendoff metrics --every` run until they are stopped, and end with 0. After `sendoff --install-completion`, your shell
completes commands and options.
"""
_HEAD_OF_SERVICE = """\
# Commands of the local service

All commands of `messaging-service`, [the local messaging service](service.md). Each prints JSON on standard output.
"""


def page() -> str:
    """Write the page of ``sendoff``."""
    from sendoff.cli.commands import app

    return _page(_HEAD, app, "sendoff")


def page_of_service() -> str:
    """Write the page of ``messaging-service``."""
    from messaging_service.cli.main import main

    return _page(_HEAD_OF_SERVICE, main, "messaging-service")


def _page(head: str, app: typer.Typer, name: str) -> str:
    command: Any = get_command(app)
    for each in _within(command):
        # Else cut after some words.
        each.short_help = " ".join((each.help or "").partition("\n\n")[0].split())
    context: Any = typer.Context(command, info_name=name)
    with context:
        written = get_docs_for_click(obj=command, ctx=context, name=name, title=name)
    _, _, written = written.partition("**Usage**")
    return f"{head}\n**Usage**{html.unescape(written).rstrip()}\n"


def _within(command: Any) -> Iterator[Any]:
    for each in getattr(command, "commands", {}).values():
        yield each
        yield from _within(each)
