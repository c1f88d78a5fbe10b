"""The suppression list: its sizes, one recipient's entries, and the forms that change it. Also one person's data.

Identifiers are in the bodies of requests and never in a URL, because URLs are logged. Pages do not repeat them. An
uploaded file is first counted. Applying it requires the same file and the same counts again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request, status
from starlette.responses import HTMLResponse, JSONResponse

from sendoff.audience import kind_of
from sendoff.audience.identifiers import LONGEST_TEXT
from sendoff.campaign import Channel, channel_scope
from sendoff.errors import AudienceError, SettingsError, UsageError
from sendoff.figures import counted
from sendoff.launch import (
    MOST_REMOVED,
    NamedRecipients,
    describe_scope,
    end_of,
    recipients_in_csv,
    recipients_of,
    suppress,
    suppression_scope,
    unsuppress,
)
from sendoff.ledger import Ledger, Replacement, SuppressionChange
from sendoff.postbacks import request_erasure
from sendoff_airflow.views.airflow_state import airflow_dags
from sendoff_airflow.views.web.dependencies import ExpensiveDep, LedgerDep
from sendoff_airflow.views.web.permissions import Viewer, ViewerDep, conflict, forbidden
from sendoff_airflow.views.web.request_models import (
    MAX_UPLOAD,
    ErasureIn,
    PersonIn,
    SuppressedPersonQuery,
    SuppressionFileIn,
    SuppressionIn,
    SuppressionPart,
    body_of,
)
from sendoff_airflow.views.web.templates import page

router = APIRouter(default_response_class=HTMLResponse)

_SOURCE = "page"
_CHANGES = 20
KINDS = {
    "device_id": "device ID",
    "user_id": "user ID",
    "external_id": "external ID",
    "device_token": "device token",
    "device_uuid": "device UUID",
}
"""The words for the columns that identify recipients."""

_VERBS = {
    "added": "added",
    "removed": "removed",
    "prolonged": "suppressed for longer",
    "shortened": "suppressed for a shorter time",
}


@dataclass(frozen=True, slots=True)
class _Planned:
    """What an uploaded file would change."""

    named: NamedRecipients
    scope: str
    sizes: Replacement
    is_large: bool  # it removes more than a replacement usually does
    token: str  # of the file and the counts


def _changer(viewer: ViewerDep, ledger: LedgerDep) -> Viewer:
    """Return the viewer, if they may change the list. This comes before a body is read."""
    if not viewer.may_act_on_all(ledger.launches.campaigns()):
        raise forbidden(
            "You may not change the suppression list. For that, you need the right to edit every DAG in Airflow, and "
            "to trigger the DAG of each campaign."
        )
    return viewer


ChangerDep = Annotated[Viewer, Depends(_changer)]


@router.get("/suppression")
def show_list(request: Request, viewer: ViewerDep, ledger: LedgerDep) -> HTMLResponse:
    """Show the sizes of the list, its latest changes, and the forms."""
    campaigns = ledger.launches.campaigns()
    viewer.check_sees_all(campaigns)
    return page(
        request,
        "suppression.html",
        sizes=ledger.suppressions.sizes(datetime.now(UTC)),
        changes=ledger.audit_log.of_suppression(limit=_CHANGES),
        channels=[(channel_scope(channel), channel.label) for channel in Channel],
        kind_names=KINDS,
        verbs=_VERBS,
        erasures=len(pending := ledger.erasures.pending()),
        who_erases=_who_erases() if pending else "",
        may_change=viewer.may_act_on_all(campaigns),
        refresh=0,
    )


@router.post("/suppression/person")
def show_entries(
    request: Request,
    viewer: ViewerDep,
    query: Annotated[SuppressedPersonQuery, Depends(body_of(SuppressedPersonQuery))],
    ledger: LedgerDep,
) -> HTMLResponse:
    """Show all entries of one recipient, newest first."""
    viewer.check_sees_all(ledger.launches.campaigns())
    [identifier] = _of_body(query.identified_by, query.identifier).identifiers
    entries = ledger.suppressions.of_person(query.identified_by, identifier)
    return page(request, "suppression_person.html", entries=entries, now=datetime.now(UTC))


@router.post("/suppression/add")
def add_one(
    request: Request,
    viewer: ChangerDep,
    body: Annotated[SuppressionIn, Depends(body_of(SuppressionIn))],
    ledger: LedgerDep,
) -> HTMLResponse:
    """Suppress one recipient."""
    named = _of_body(body.identified_by, body.identifier)
    new = _new(body, _SOURCE, viewer)
    added = suppress(ledger, new, named.identifiers)
    words = (
        f"Suppressed for {describe_scope(new.scope)}."
        if added
        else "Suppressed there before. The entry stays, with the later of the two ends."
    )
    return _done(request, words)


@router.post("/suppression/remove")
def remove_one(
    request: Request,
    viewer: ChangerDep,
    body: Annotated[SuppressionIn, Depends(body_of(SuppressionIn))],
    ledger: LedgerDep,
) -> HTMLResponse:
    """End the suppression of one recipient in one scope."""
    named, scope = _of_body(body.identified_by, body.identifier), _scope(body)
    ended = SuppressionChange(scope, body.identified_by, None, viewer.name, body.reason)
    if not unsuppress(ledger, ended, named.identifiers):
        raise conflict(
            f"there is no such suppression for {describe_scope(scope)}. Look the recipient up to "
            "see all entries."
        )
    return _done(request, f"Not suppressed any more for {describe_scope(scope)}.")


@router.post("/suppression/check")
def check_file(
    request: Request,
    viewer: ChangerDep,
    _: ExpensiveDep,
    body: Annotated[SuppressionFileIn, Depends(body_of(SuppressionFileIn, MAX_UPLOAD))],
    ledger: LedgerDep,
) -> HTMLResponse:
    """Show what an uploaded file would change, with the button that applies it. Change nothing."""
    planned = _plan(ledger, body, _new(body, body.source, viewer))
    return page(
        request,
        "suppression_check.html",
        planned=planned,
        where=describe_scope(planned.scope),
        how=body.how,
        source=body.source,
        most_removed=MOST_REMOVED,
    )


@router.post("/suppression/file")
def apply_file(
    request: Request,
    viewer: ChangerDep,
    _: ExpensiveDep,
    body: Annotated[SuppressionFileIn, Depends(body_of(SuppressionFileIn, MAX_UPLOAD))],
    ledger: LedgerDep,
) -> HTMLResponse:
    """Apply a file whose counts were shown."""
    new = _new(body, body.source, viewer)
    planned = _plan(ledger, body, new)
    if planned.token != body.checked:
        raise conflict("the file, the form or the list changed since you checked it. Check the file again.")
    if planned.is_large and not body.confirmed:
        raise _unreadable("select the box that confirms how many are removed")
    people = planned.named.identifiers
    done = planned.sizes
    if body.how == "add":
        done = replace(done, added=suppress(ledger, new, people))
    elif body.how == "remove":
        done = replace(done, removed=unsuppress(ledger, new, people))
    else:
        ledger.suppressions.replace(new, people, datetime.now(UTC), planned.sizes)
    parts = [(getattr(done, name), verb) for name, verb in _VERBS.items()]
    words = ", ".join(f"{counted(count, *planned.named.noun)} {verb}" for count, verb in parts if count)
    return _done(request, f"{words or 'Nothing changed'}, for {describe_scope(new.scope)}.")


@router.post("/suppression/export")
def export_person(
    viewer: ChangerDep,
    _: ExpensiveDep,
    body: Annotated[PersonIn, Depends(body_of(PersonIn))],
    ledger: LedgerDep,
) -> JSONResponse:
    """Return everything that the ledger holds about one person, as a JSON file."""
    [identifier] = _of_body(body.identified_by, body.identifier).identifiers
    try:
        held = ledger.persons.export(
            body.identified_by, identifier, who=viewer.name, why=body.reason, now=datetime.now(UTC)
        )
    except SettingsError as error:
        raise _unreadable(str(error)) from None
    return JSONResponse(held, headers={"Content-Disposition": 'attachment; filename="person.json"'})


@router.post("/suppression/erase")
def erase_person(
    request: Request,
    viewer: ChangerDep,
    _: ExpensiveDep,
    body: Annotated[ErasureIn, Depends(body_of(ErasureIn))],
    ledger: LedgerDep,
) -> HTMLResponse:
    """Request the erasure of one person, and suppress them at once for every campaign. Show if no data names them."""
    named, again = (_of_body(body.identified_by, text) for text in (body.identifier, body.again))
    if named != again:
        raise _unreadable("the two identifiers differ. Enter the same one twice")
    try:
        is_known = ledger.erasures.count_known(ledger.erasures.named(body.identified_by, named.identifiers))
        request_erasure(
            ledger, named.identifiers, identified_by=body.identified_by, who=viewer.name, reason=body.reason
        )
    except SettingsError as error:
        raise _unreadable(str(error)) from None
    done = "The erasure is requested, and nothing more is sent to this person."
    if not is_known:
        kind = KINDS[body.identified_by]
        done += f" Sendoff has no data about this {kind}: check its spelling, and that it is a {kind}."
    return _done(request, f"{done} {_who_erases()}")


def _who_erases() -> str:
    """Return when requested erasures are carried out."""
    command = "The command sendoff forget --continue erases the data at once."
    dag = airflow_dags.schedule_of("sendoff_maintenance")
    if dag is None or not dag.will_run:
        why = "Airflow does not have" if dag is None else "Airflow does not run"
        return (
            f"No one erases the data yet: {why} the DAG sendoff_maintenance. Ask a data engineer. {command}"
        )
    return f"The DAG sendoff_maintenance erases the data in its next run. {command}"


def _plan(ledger: Ledger, body: SuppressionFileIn, new: SuppressionChange) -> _Planned:
    if "\ufffd" in body.csv:  # the browser's mark of bytes that are not UTF-8
        raise _unreadable("the file has text that is not UTF-8. Save it as CSV in UTF-8")
    try:
        named = recipients_in_csv(body.csv.encode(), body.identified_by)
    except AudienceError as error:
        raise _unreadable(str(error)) from None
    if not len(named) and body.how != "replace":
        raise _unreadable("the file has no identifiers")
    now = datetime.now(UTC)
    if body.how == "remove":
        known = ledger.suppressions.count_among(new, named.identifiers, now)
        sizes = Replacement(added=0, removed=known, before=known)
    else:
        try:
            sizes = ledger.suppressions.planned(new, named.identifiers, now)
        except UsageError as error:
            raise _unreadable(str(error)) from None
        if body.how == "add":
            sizes = replace(sizes, removed=0, shortened=0)
    is_large = body.how == "replace" and sizes.removes_more_than(MOST_REMOVED)
    facts = (
        body.how,
        new.scope,
        new.identified_by,
        new.source,
        str(new.until),
        sizes.added,
        sizes.removed,
        sizes.prolonged,
        sizes.shortened,
        body.csv,
    )
    token = hashlib.blake2b("\0".join(map(str, facts)).encode(), digest_size=16).hexdigest()
    return _Planned(named, new.scope, sizes, is_large, token)


def _of_body(identified_by: str, identifier: str) -> NamedRecipients:
    try:
        return recipients_of([identifier], identified_by)
    except AudienceError:
        must = f"not be longer than {LONGEST_TEXT:,} bytes"
        if kind_of(identified_by) == "integer":
            must = f"be a whole number from 1 to {2**63 - 1:,}"
        raise _unreadable(f"a {identified_by.replace('_', ' ')} must {must}") from None


def _new(body: SuppressionPart, source: str, viewer: Viewer) -> SuppressionChange:
    try:
        end = end_of(body.until, datetime.now(UTC))
    except SettingsError as error:
        raise _unreadable(str(error)) from None
    return SuppressionChange(_scope(body), body.identified_by, source, viewer.name, body.reason, end)


def _scope(body: SuppressionPart) -> str:
    if body.scope != "topic":
        return body.scope
    try:
        return suppression_scope(topic=body.topic)
    except SettingsError as error:
        raise _unreadable(str(error)) from None


def _unreadable(why: str) -> HTTPException:
    return HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, f"Nothing was done: {why}.")


def _done(request: Request, sentence: str) -> HTMLResponse:
    return page(request, "done.html", sentences=[sentence], following=None)
