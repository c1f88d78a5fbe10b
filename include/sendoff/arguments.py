"""Checks of the arguments that several calls share."""

from __future__ import annotations

from sendoff.errors import UsageError


def check_flags(**flags: object) -> None:
    """Raise UsageError, with the name of the flag, if one is not a boolean. A text would count as true."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise UsageError(f"{name}: {value!r} is not a boolean. Use True or False")


def check_reason(given: object) -> None:
    """Raise UsageError if a reason for the audit log is blank or no text."""
    if not isinstance(given, str) or not given.strip():
        raise UsageError("the reason is blank. Say why, in a few words")


def check_source(given: str | None) -> None:
    """Raise UsageError if the source of entries of the suppression list is blank. None is of every source."""
    if given is not None and not given.strip():
        raise UsageError("the source is blank. Name where the entries come from, such as crm")
