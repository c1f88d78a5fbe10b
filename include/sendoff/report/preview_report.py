"""The preview of a launch as a document: for the terminal, and for the person who approves the launch.

It identifies no one. Text from the campaign file or the warehouse is code, so that no renderer interprets it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from sendoff.campaign import Channel
from sendoff.figures import (
    ERASED_SINCE,
    counted,
    duration,
    listed,
    noun_for,
    noun_of,
    rows_for,
    share,
    spoken_reason,
)
from sendoff.launch import ExistingLaunch, Preview, Rendering, Zone
from sendoff.report.model import (
    Block,
    Bullets,
    Code,
    Document,
    Facts,
    Line,
    Listing,
    Moment,
    Section,
    Sentence,
    Sum,
    Table,
    Words,
)
from sendoff.states import Verdict

_MOST_VALUES = 8
_MOST_ZONES = 4
_CHOSEN = {
    "broadcast": "The service sends it to its whole user base",
    "saved_segments": "The service chooses the people by its saved segments",
    "conditions": "The service chooses the people by the campaign's conditions",
}


def describe_preview(preview: Preview, *, answer_by: datetime | None = None) -> Document:
    """Return a preview as a document. It holds no identifiers.

    ``answer_by``: the moment of the rejection if no one answers, in the time zone that the document shows. The texts
    come first, then the recipients, then the tables.
    """
    return Document(
        title=Code(preview.title if answer_by else preview.campaign),
        subtitle="" if answer_by else Code(preview.period),
        lead=list(_summary(preview, answer_by)),
        sections=[
            Section(name, heading, list(blocks))
            for name, heading, blocks in _sections(preview, is_question=bool(answer_by))
        ],
    )


def recipients_of(preview: Preview) -> str:
    """Return the number of recipients with its unit, such as ``2,000 devices``, or who chooses them."""
    if preview.people is None:
        return "the people chosen by the service"
    return counted(preview.people, *noun_of(preview.identified_by))


def _summary(preview: Preview, answer_by: datetime | None) -> Iterator[Block]:
    if answer_by:
        by = f"{answer_by:%A %Y-%m-%d %H:%M} {answer_by.tzinfo}"
        yield Sentence(f"Answer by {by}. Without an answer, nothing is sent.", is_alarm=True)
    elif not preview.launch_key:
        yield Sentence("A preview: nothing was sent or stored.")
    if preview.existing_launch:
        yield from _existing_launch(preview, preview.existing_launch)
    elif not preview.would_send:
        closed = [gate.name for gate in preview.gates if not gate.is_open]
        why = f"closed gates: {', '.join(closed)}" if closed else f"the launch is {preview.state}"
        yield Sentence(f"WOULD NOT BE SENT ({why}).", is_alarm=True)
    elif preview.people is not None:
        agreed = " after approval" if preview.approval.is_needed else ""
        goes = "It goes to" if answer_by else "It would be sent to"
        yield Sentence(f"{goes} {recipients_of(preview)}{agreed}.")
    if answer_by:
        yield from _when(preview)


def _existing_launch(preview: Preview, launch: ExistingLaunch) -> Iterator[Block]:
    if launch.last_at and launch.accepted == launch.requests:
        yield Sentence(_handed_over(preview, launch, launch.last_at), is_alarm=True)
    else:
        made = f"{launch.requests_made:,} of {counted(launch.requests, 'request')} made"
        words = f"{made}, {launch.accepted:,} accepted."
        begun = () if preview.launch_key else ("ALREADY LAUNCHED, ", Moment(launch.created_at), ": ")
        yield Sentence((*begun, words), is_alarm=True)
    if preview.launch_key is None:
        rest = "sends nothing more" if launch.is_finished else "continues it"
        yield Sentence(
            f"The ledger holds launch {launch.launch_key} ({launch.state}) for this period. "
            f"A run for the period {rest}. To send the period again, give the run a resend number and a reason. "
            "The figures below are those of the recipients now."
        )


def _handed_over(preview: Preview, launch: ExistingLaunch, at: datetime) -> Words:
    """Return when the service got a launch and when it sends it."""
    people = "" if launch.people is None else f" to {counted(launch.people, *noun_of(preview.identified_by))}"
    if launch.sends_at is not None and launch.sends_at <= at:
        return f"ALREADY SENT{people}, ", Moment(at), "."
    handed = ("Handed to the service ", Moment(at), ". ")
    if launch.sends_at is None:
        return *handed, f"Goes out{people} {preview.send_times.words}."
    verb = "Goes out" if launch.sends_at > datetime.now(UTC) else "Went out"
    latest = "" if preview.send_times.first_at == preview.send_times.last_at else " at the latest"
    return *handed, f"{verb}{people} ", Moment(launch.sends_at), f"{latest}."


def _sections(preview: Preview, *, is_question: bool) -> Iterator[tuple[str, str, Iterable[Block]]]:
    """Yield each section: its name, its heading and its blocks. ``is_question``: the lead says when it is sent."""
    if preview.renderings:
        texts = [block for each in preview.renderings for block in _rendering(preview, each)]
        yield "texts", "What people see", [*texts, *_filled_in(preview.filled_in)]
    by = f", by {preview.identified_by}" if preview.identified_by and not is_question else ""
    yield "people", f"Who gets it, and who is left out{by}", _people(preview)
    if not is_question:
        yield "when", "When", _when(preview)
    for number, (heading, blocks) in enumerate(_parts(preview), start=1):
        yield f"part-{number}", heading, blocks
    if preview.warnings:
        yield "notes", "Notes", [Bullets(preview.warnings)]
    if not is_question:
        yield "approval", "Approval", [Sentence(_approval(preview))]
    yield "requests", "Requests", _cost(preview)
    if preview.gates:
        rows = [
            ("open" if each.is_open else "CLOSED", each.name, each.actual, each.allowed)
            for each in preview.gates
        ]
        yield "gates", "Gates", [Table(("", "gate", "found", "allowed"), rows)]
    if preview.request is not None:
        shown = json.dumps(preview.request, indent=2, ensure_ascii=False)
        yield "request", "The first request", [Listing(shown, "json")]


def _people(preview: Preview) -> Iterator[Block]:
    is_own = preview.is_own_request
    if preview.audience is None or preview.people is None:
        why = "The request has no single list of people" if is_own else _CHOSEN[preview.targeting]
        yield Sentence(f"{why}, so their number is not known here.")
        return
    lines = [Line("", preview.rows, rows_for(preview.rows, is_own_request=is_own))]
    lines += [Line("-", count, spoken_reason(reason)) for reason, count in preview.dropped.items()]
    if not is_own:
        lines.append(Line("=", preview.audience, "audience"))
    later = [item for item in preview.suppressed.items() if item[0] not in preview.dropped]
    if is_own or later or preview.people != preview.audience:
        lines += [Line("-", count, spoken_reason(reason)) for reason, count in later]
        lines.append(Line("=", preview.people, noun_for(preview.people, *noun_of(preview.identified_by))))
    yield Sum(lines)
    if is_own:
        return
    if source := preview.source:
        verdicts = ", ".join(Verdict(verdict).label for verdict in source.verdicts)
        several = len(source.launch_keys)
        launches = f"{several} launches" if several > 1 else "launch"
        yield Sentence(f"They come from the {launches} of {source.campaign} for {source.period}: {verdicts}.")
    if change := preview.change:
        yield Sentence(
            f"Since the last launch ({change.period}) with {change.audience:,}: "
            f"{change.kept:,} kept, {change.new:,} new, {change.gone:,} gone."
        )
    else:
        yield Sentence("There is no earlier launch to compare with.")


def _parts(preview: Preview) -> Iterator[tuple[str, Iterable[Block]]]:
    """Yield sizes: first by the launch's variants, languages, time zones and waves, then by the query's groups."""
    noun = noun_of(preview.identified_by)[1]
    for name, sizes in (("variant", preview.variants), ("language of the message", preview.languages)):
        if sizes:
            table = _sizes(sizes, name.partition(" ")[0], noun, preview.people)
            yield f"By {name}", [table, *(_winner(preview) if name == "variant" else ())]
    if preview.time_zones:
        yield "By time zone", [_zones(preview.time_zones, noun)]
    if preview.own_hours:
        note = "The hours are those of the recipients' time zone. Without one, the hours of the campaign's apply."
        rows = [
            (when, f"{size:,}", share(size, preview.people or 0)) for when, size in preview.own_hours.items()
        ]
        yield "By hour", [Table(("sent", noun, "share"), rows, frozenset((1, 2))), Sentence(note)]
    if preview.waves:
        waves = [(str(number), f"{size:,}") for number, size in enumerate(preview.waves, start=1)]
        yield "By wave", [Table(("wave", noun), waves, frozenset((1,)))]
    not_erased = (preview.audience or 0) - preview.suppressed.get(ERASED_SINCE, 0)
    for column, sizes in preview.groups.items():
        if sizes and not (column == "time_zone" and preview.time_zones):
            yield f"The audience by {column}", [_sizes(sizes, column, noun, not_erased)]


def _winner(preview: Preview) -> Iterator[Sentence]:
    if preview.decide:
        yield Sentence(preview.decide)
        yield Sentence(
            f"The rest gets {preview.winner}." if preview.winner else "The winner is not decided yet."
        )


def _zones(zones: Sequence[Zone], noun: str) -> Table:
    """Return the time zones, with those that are sent to at the same local time and UTC offset in one row."""
    alike: dict[str, list[Zone]] = {}
    for zone in zones:
        at = f"{zone.sends_at:%a %Y-%m-%d %H:%M (UTC%z)}" if zone.sends_at else "as soon as its window opens"
        alike.setdefault(at, []).append(zone)
    rows = []
    for at, together in alike.items():
        names = [zone.time_zone for zone in together[:_MOST_ZONES]]
        if more := len(together) - len(names):
            names.append(f"{more} more")
        rows.append((at, f"{sum(zone.people for zone in together):,}", Code(", ".join(names))))
    return Table(("sent at", noun, "time zones"), rows, frozenset((1,)))


def _sizes(sizes: Mapping[str, int], name: str, noun: str, everybody: int | None) -> Table:
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    if others := largest[_MOST_VALUES:]:
        largest = [*largest[:_MOST_VALUES], (f"{len(others)} others", sum(size for _, size in others))]
    rows = [(Code(value), f"{size:,}", share(size, everybody or 0)) for value, size in largest]
    return Table((name, noun, "share"), rows, frozenset((1, 2)))


def _when(preview: Preview) -> Iterator[Block]:
    send_times = preview.send_times
    yield Sentence(f"{send_times.words[0].upper()}{send_times.words[1:]}.")
    if send_times.first_at and send_times.last_at and send_times.first_at != send_times.last_at:
        yield Sentence(("From ", Moment(send_times.first_at), " to ", Moment(send_times.last_at), "."))
    elif send_times.first_at:
        yield Sentence(("That is ", Moment(send_times.first_at), "."))


def _cost(preview: Preview) -> Iterator[Block]:
    requests = counted(preview.requests, "request")
    if preview.people is not None and not preview.is_own_request:
        each = " each" if preview.requests > 1 else ""
        requests += f" of up to {counted(preview.segment_size, *noun_of(preview.identified_by))}{each}"
    if preview.seconds is None:
        took = "how long this takes is not known, because no rate limit was given"
    else:
        took = f"at {preview.rate:g} per second this takes {duration(preview.seconds)} or more"
    yield Sentence(f"{requests}; {took}.")
    if preview.waves and preview.wave_wait_seconds is not None:
        yield Sentence(f"Wait between two waves: {duration(preview.wave_wait_seconds)}.")


def _approval(preview: Preview) -> str:
    needed = preview.approval
    if not needed.is_needed:
        return "No approval is needed."
    who = f"Someone with the role {needed.role}" if needed.role else "Someone with rights in Airflow"
    return f"{who} must approve within {duration(needed.within_seconds)}. Otherwise the launch is rejected."


def _rendering(preview: Preview, rendering: Rendering) -> Iterator[Block]:
    marks = [f"variant {rendering.variant}" if rendering.variant else None, rendering.language]
    said = ", ".join(mark for mark in marks if mark) or "Everyone"
    if rendering.people is not None:
        said += f" ({counted(rendering.people, *noun_of(preview.identified_by))})"
    elif rendering.language:
        said += " (the service chooses who gets it)"
    if rendering.template is not None:
        yield Sentence(f"{said}: the text is in the service's campaign {rendering.template}.")
        return
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for channel, parts in rendering.channels.items():
        alike.setdefault(tuple(parts.items()), []).append(Channel(channel).label)
    for words, channels in alike.items():
        yield Sentence(f"{said}, by {listed(channels)}:")
        yield Facts(list(_shown(words)))


def _filled_in(names: Sequence[str]) -> Iterator[Block]:
    if names:
        tags = ", ".join(f"{{{{{name}}}}}" for name in names)
        yield Sentence(
            f"The service fills in {tags} from its own data. According to its public documentation, it does not send "
            "the message to a person if it has no value for them."
        )


def _shown(parts: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Code]]:
    """Yield a row for each line of a text."""
    for name, words in parts:
        for number, line in enumerate(words.splitlines() or [""]):
            yield ("" if number else name), Code(line)
