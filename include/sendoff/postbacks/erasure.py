"""Erase people on request, continue interrupted erasures, and bring a restored ledger up to date."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sendoff.audience import HashedIdentifier
from sendoff.audience.identifiers import Identifiers
from sendoff.campaign import EVERYTHING
from sendoff.errors import SettingsError
from sendoff.ledger import ERASURE, Erasure, Ledger, Remembered, SuppressionChange
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.settings import load_settings

_log = logging.getLogger(__name__)

_NO_LOG = (
    "there is no erasure log, so a backup that is restored brings erased people back. Set SENDOFF_ERASURE_LOG, or "
    "erasure_log in the connection sendoff_ledger. Then erase the same people again, so that the log has them"
)
_BEGIN = '{"identified_by": '  # of a line of an erasure log; the rest of it may be cut off
_USE_THE_LOG = "Give the file of SENDOFF_ERASURE_LOG"


@dataclass(frozen=True, slots=True)
class Erased:
    """The result of erasures. ``reports``: how many reports were made again."""

    requests: int
    people: int
    reports: int


def forget(
    ledger: Ledger,
    identifiers: Iterable[int | str],
    *,
    identified_by: str,
    who: str,
    reason: str,
    now: datetime | None = None,
) -> Erased:
    """Erase people from a ledger, and return how many. The identifiers must be all that the ledger may know them by.

    ``identified_by``: their column in audience queries, such as ``device_id``. The erasure log, if the ledger or
    the settings name one, gets the hashes before anything else happens. If this is interrupted,
    :func:`continue_erasures` finishes it.

    Raise SettingsError if the erasure secret is missing or is not the one of this ledger, or if the log cannot be
    written. Raise AudienceError if an identifier is blank, or not a whole number as a device ID. Raise GateError if the
    ledger was moved.
    """
    moment = now or datetime.now(UTC)
    given = list(identifiers)
    if not given:
        return Erased(0, 0, 0)
    request = request_erasure(ledger, given, identified_by=identified_by, who=who, reason=reason, now=moment)
    return _carry_out(ledger, [request], moment)


def request_erasure(
    ledger: Ledger,
    identifiers: Iterable[int | str],
    *,
    identified_by: str,
    who: str,
    reason: str,
    now: datetime | None = None,
) -> Erasure:
    """Store a request to erase people, which :func:`continue_erasures` carries out, and return it.

    The arguments and errors are those of :func:`forget`. No launch that is frozen from now on has these people, and no
    request that is claimed from now on.
    """
    moment = now or datetime.now(UTC)
    ledger.pauses.check_not_moved()
    people = ledger.erasures.named(identified_by, identifiers)
    if (file := _log_of(ledger)) is not None:
        append_to_log(file, people.remembered, moment)
    # Until the erasure is carried out, launches that are frozen already still have these people.
    new = SuppressionChange(EVERYTHING, identified_by, ERASURE, who, "erasure requested")
    ledger.suppressions.add(new, people.identifiers, moment)
    request = ledger.erasures.request(people, who=who, why=reason, now=moment)
    _log.info("erasure %d: %d people", request.request, request.people)
    return request


def erased_before(ledger: Ledger, identified_by: str, identifiers: Identifiers) -> Identifiers:
    """Return the members of a set who need no erasure: they were erased, and the erasure log, if any, has them."""
    erased = ledger.erasures.people().among(identified_by, identifiers)
    file = _log_file(ledger)
    if file is None or not len(erased):
        return erased
    logged = read_log(file) if file.exists() else ()
    return ledger.erasures.among_logged(logged, identified_by, erased)


def continue_erasures(ledger: Ledger, *, now: datetime | None = None) -> Erased:
    """Finish the erasures that were interrupted, oldest first."""
    requests = ledger.erasures.pending()
    if requests:
        _log_of(ledger)
    return _carry_out(ledger, requests, now or datetime.now(UTC))


def replay_erasures(ledger: Ledger, file: Path, *, who: str, now: datetime | None = None) -> Erased:
    """Erase the people of an erasure log from a ledger, such as one that was restored from a backup.

    The log has no identifiers: each identifier in the ledger is compared with its hashes. Raise SettingsError, before
    anything is stored, if the erasure secret is not the one that the log was written with.
    """
    moment = now or datetime.now(UTC)
    ledger.erasures.remember(list(read_log(file)), moment)
    requests = [
        ledger.erasures.request(
            ledger.erasures.named(column, people), who=who, why="replayed from the erasure log", now=moment
        )
        for column, people in ledger.erasures.restored().items()
    ]
    return _carry_out(ledger, [*ledger.erasures.pending()] if requests else [], moment)


def append_to_log(file: Path, remembered: Iterable[Remembered], now: datetime) -> None:
    """Append hashes to an erasure log, and wait until they are on the disk."""
    lines = [
        json.dumps(
            {
                "identified_by": each.identified_by,
                "kind": each.kind,
                "digest": each.hashed.digest,
                "bucket": each.hashed.bucket,
                "secret_check": each.secret_check,
                "erased_at": now.isoformat(),
            }
        )
        for each in remembered
    ]
    try:
        with os.fdopen(os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "a") as log:
            # An earlier end may be cut off, so begin a new line. To look would be no help: another process may write.
            log.write(("\n" if log.tell() else "") + "".join(f"{line}\n" for line in lines))
            log.flush()
            os.fsync(log.fileno())
    except OSError as error:
        raise SettingsError(
            f"the erasure log {file} cannot be written: {error.strerror}. Nothing was erased"
        ) from None


def read_log(file: Path) -> Iterator[Remembered]:
    """Yield the hashes in an erasure log. Lines that were cut off are skipped: nothing was erased by them.

    A power failure may leave NUL bytes in place of the rest of a line.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise SettingsError(f"the erasure log {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{file}: the text is not UTF-8. {_USE_THE_LOG}") from None
    for number, text in enumerate(lines, start=1):
        line = text.rstrip("\0")
        try:
            entry = json.loads(line)
            hashed = HashedIdentifier(entry["digest"], int(entry["bucket"]))
            yield Remembered(entry["identified_by"], entry["kind"], hashed, entry["secret_check"])
        except (ValueError, KeyError, TypeError):
            if line.endswith("}") or not _BEGIN.startswith(line[: len(_BEGIN)]):
                raise SettingsError(
                    f"{file}, line {number}: this is no line of an erasure log. {_USE_THE_LOG}"
                ) from None


def _log_of(ledger: Ledger) -> Path | None:
    """Return the erasure log, or warn that there is none."""
    file = _log_file(ledger)
    if file is None:
        _log.warning(_NO_LOG)
    return file


def _log_file(ledger: Ledger) -> Path | None:
    file = ledger.erasure_log or load_settings(["erasure_log"]).erasure_log
    return Path(file) if file else None


def _carry_out(ledger: Ledger, requests: Iterable[Erasure], now: datetime) -> Erased:
    done = people = 0
    for request in requests:
        while ledger.erasures.advance(request.request, now):
            pass
        done, people = done + 1, people + request.people
    return Erased(done, people, _report_again(ledger, now) if done else 0)


def _report_again(ledger: Ledger, now: datetime) -> int:
    """Make the reports of launches again that lost recipients, so that each shows them as erased."""
    stale = ledger.erasures.reported_before()
    for launch_key in stale:
        reconcile_launch(ledger, launch_key, now=now)
    return len(stale)
