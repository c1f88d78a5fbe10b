"""Describe what a change of a campaign changes for its recipients."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from sendoff.campaign import OTHER_LANGUAGES, CampaignDifference, Change, Part, Place
from sendoff.figures import counted, json_value, listed
from sendoff.launch import RecipientChange
from sendoff.report.model import Block, Code, Document, Listing, Section, Sentence, Table, Words

_HEADINGS = {
    Part.MESSAGES: "Messages",
    Part.AUDIENCE: "Audience",
    Part.TIMES: "Schedule and gates",
    Part.SHARES: "Variants and holdout",
    Part.NO_EFFECT: "No effect on recipients",
}
_MESSAGES = {
    **dict.fromkeys(("android_push", "ios_push", "web_push"), "push message"),
    "inbox": "inbox message",
    "email": "email",
    "sms": "text message",
    "webhook": "webhook",
}
_NOUNS = {
    "after": "the schedule",
    "approval": "the approval",
    "audience.cap": "the frequency cap",
    "audience.exclude": "the exclusions",
    "audience.holdout": "the holdout",
    "audience.holdout.percent": "the share of the holdout",
    "audience.priority": "the priority",
    "audience.sql": "the audience query",
    "connection": "the connection",
    "dbt": "the gates of dbt models",
    "dbt.artifacts": "the dbt project",
    "encryption": "the encryption",
    "formerly": "the earlier names",
    "gates": "the gates",
    "gates.rollout": "the rollout",
    "decide": "the winner of a test share",
    "gates.window": "the send window",
    "on_doubt": "the handling of doubts",
    "push_expiry": "the expiry of push messages",
    "schedule": "the schedule",
    "schedule_time_zone": "the schedule",
    "send": "the send time",
    "start": "the schedule",
    "targeting": "the targeting",
    "template": "the template",
    "topic": "the topic",
    "transactional": "the transactional reason",
    "variants": "the variants",
    "wait": "the wait",
    "warehouse": "the warehouse",
}

_PERIODS = frozenset({"schedule", "schedule_time_zone"})


def describe_difference(
    difference: CampaignDifference, recipients: RecipientChange | None = None
) -> Document:
    """Return a document on what a change of a campaign changes for its recipients, with counts if they are known."""
    lead: list[Block] = [Sentence(difference_sentence(difference))]
    if difference.may_send_again:
        text = "To Sendoff this is another campaign: a period that the old one sent will be sent again."
        if difference.old in difference.forgotten:
            text = f"{text} If it is the same one, add its old name to formerly."
        elif difference.forgotten:
            names = listed(difference.forgotten)
            text = f"A period that was sent under an earlier name, {names}, will be sent again. Keep it in formerly."
        lead.append(Sentence(text, is_alarm=True))
    elif difference.old and any(change.name in _PERIODS for change in difference.changes):
        text = "A run whose period overlaps one that was sent is skipped"
        lead.append(
            Sentence(f"{text}, unless the campaign leaves out its own recipients, as a journey does.")
        )
    sections = [_recipients(recipients)] if recipients else []
    for part in Part:
        changes = [change for change in difference.changes if change.part is part]
        if changes:
            sections.append(Section(part, _HEADINGS[part], list(_blocks(changes))))
    return Document(Code(difference.new or difference.old or ""), lead, sections)


def _recipients(change: RecipientChange) -> Section:
    """Return how many recipients are added and removed, and the gates of the new version."""
    counts = {
        "Before": change.before,
        "After": change.after,
        "Added": change.added,
        "Removed": change.removed,
    }
    known = {name: count for name, count in counts.items() if count is not None}
    blocks: list[Block] = []
    if known:
        blocks.append(Table(tuple(known), [tuple(f"{count:,}" for count in known.values())]))
    elif not (change.old_problem or change.new_problem or change.are_in_ledger):
        blocks.append(Sentence("The service chooses the recipients, so they cannot be counted."))
    if change.are_in_ledger:
        words = "The recipients come from the verdicts of another launch, which are in a ledger."
        blocks.append(Sentence(f"{words} They are not counted here."))
    if change.before is not None and change.after is not None and change.added is None:
        blocks.append(
            Sentence("Who is added cannot be known, because another column identifies the recipients.")
        )
    for which, problem in (("old", change.old_problem), ("new", change.new_problem)):
        if problem:
            blocks.append(
                Sentence(
                    f"The {which} version cannot be launched: {problem.rstrip('.')}.", is_alarm=which == "new"
                )
            )
    gates: list[tuple[Words, ...]] = [
        (Code(gate.name), "open" if gate.is_open else "closed", gate.words) for gate in change.gates
    ]
    if gates:
        blocks.append(Table(("Gate", "State", "Value"), gates))
    return Section("recipients", "Recipients", blocks)


def difference_sentence(difference: CampaignDifference) -> str:
    """Return the difference as one plain sentence."""
    files = (
        f"{counted(len(difference.files), 'file')} {'differs' if len(difference.files) == 1 else 'differ'}"
    )
    if difference.old is None:
        return f"This campaign is new; {counted(len(difference.files), 'file')}."
    if difference.new is None:
        return "This campaign is removed."
    if not difference.affects_recipients:
        return f"Nothing changes for recipients; {files}." if difference.files else "Nothing changes."
    clauses = list(_clauses(difference))
    text = "; ".join([*clauses, files])
    return f"{text[0].upper()}{text[1:]}."


def difference_as_json(
    difference: CampaignDifference, recipients: RecipientChange | None = None
) -> dict[str, Any]:
    """Return a difference as JSON values, with the counts of recipients if they are known."""
    counts = {"recipients": asdict(recipients)} if recipients else {}
    return {
        **counts,
        "name": difference.new or difference.old,
        "old_name": difference.old,
        "new_name": difference.new,
        "summary": difference_sentence(difference),
        "affects_recipients": difference.affects_recipients,
        "may_send_again": difference.may_send_again,
        "files": list(difference.files),
        "changes": [_change_as_json(change) for change in difference.changes],
    }


def _change_as_json(change: Change) -> dict[str, Any]:
    values: dict[str, Any] = json_value(asdict(change))
    del values["is_file"]
    return values


def _clauses(difference: CampaignDifference) -> Iterator[str]:
    if difference.old != difference.new:
        yield f"the name changes from {difference.old} to {difference.new}"
    switched = [change for change in difference.changes if change.places and change.name == "channel"]
    nouns = [*_messages(difference, switched), *dict.fromkeys(_nouns(difference))]
    if nouns:
        is_one = len(nouns) == 1 and " and " not in nouns[0] and not nouns[0].endswith("s")
        yield f"{listed(nouns)} {'changes' if is_one else 'change'}"
    for change in switched:
        yield _switch(change)


def _switch(change: Change) -> str:
    names = dict.fromkeys(at.channel for at in change.places)
    return f"{listed(names)} {'is' if len(names) == 1 else 'are'} {'added' if change.after else 'removed'}"


def _messages(difference: CampaignDifference, switched: Sequence[Change]) -> Iterator[str]:
    """Yield what changes in each kind of message. Channels that are added or removed have a clause of their own."""
    left_out = {at.channel for change in switched for at in change.places}
    fields: dict[str, dict[str, None]] = {}
    for change in difference.changes:
        for at in change.places:
            if at.channel not in left_out:
                fields.setdefault(_MESSAGES[at.channel], {})[change.name.replace("_", " ")] = None
    for message, names in fields.items():
        yield f"the {listed(names)} of the {message}"


def _nouns(difference: CampaignDifference) -> Iterator[str]:
    for change in difference.changes:
        if not change.places and change.part is not Part.NO_EFFECT:
            steps = change.name.split(".")
            names = (".".join(steps[:size]) for size in range(len(steps), 0, -1))
            yield next((_NOUNS[name] for name in names if name in _NOUNS), change.name)


def _blocks(changes: Sequence[Change]) -> Iterator[Block]:
    rows: list[tuple[Words, ...]] = []
    for change in changes:
        if change.places and change.name == "channel":
            yield Sentence(f"{_switch(change)}.")
        elif change.places or change.is_file:
            where = f" of {_where(change.places)}" if change.places else ""
            yield Sentence((Code(change.name), where))
            yield _values(change)
        else:
            before, after = (Code(each) if each else "none" for each in (change.before, change.after))
            rows.append((Code(change.name), before, after))
    if rows:
        yield Table(("Field", "Before", "After"), rows)


def _values(change: Change) -> Block:
    if change.before == change.after:
        return Sentence("It changes. Its value is not shown, because it may be secret.")
    return Listing(_unified(change.before, change.after), "diff")


def _unified(before: str | None, after: str | None) -> str:
    """Return a unified diff of two texts with three lines of context. If it has one part, leave out its heading."""
    old, new = ((text or "").splitlines() for text in (before, after))
    lines = list(difflib.unified_diff(old, new, lineterm=""))[2:]
    headings = [line for line in lines if line.startswith("@@")]
    return "\n".join(lines[1:] if len(headings) == 1 else lines)


def _where(places: Sequence[Place]) -> str:
    """Return the channels, languages and variants of some places in words."""
    channels, languages, variants = (
        [name for name in dict.fromkeys(getattr(at, kind) for at in places) if name]
        for kind in ("channel", "language", "variant")
    )
    is_grid = len(places) == len(channels) * max(1, len(languages)) * max(1, len(variants))
    if not is_grid:
        return "; ".join(_where([at]) for at in places)
    words = listed(channels)
    spoken = ["all other languages" if each == OTHER_LANGUAGES else each for each in languages]
    words += f" in {listed(spoken)}" if spoken else ""
    return words + (f", variant{'s' * (len(variants) > 1)} {listed(variants)}" if variants else "")
