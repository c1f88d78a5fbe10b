"""A preview as text: for the terminal, and as Markdown for whoever must agree to a launch.

Both are written from the same sections. What comes from the file or the warehouse stands as it is, and can be neither
Markdown, nor HTML, nor a terminal's control sequence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.highlighter import JSONHighlighter
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sendoff.figures import share
from sendoff.launch.preview import CLOSED_STATES, Made, Preview, Zone
from sendoff.launch.rendering import Rendering

_MOST_VALUES = 8
_MOST_ZONES = 4
_CHOSEN = {
    "broadcast": "The service sends it to its whole user base",
    "saved_segments": "The service chooses the people, by segments that it keeps",
    "conditions": "The service chooses the people, by the campaign's conditions",
}
# Controls of a terminal, and those that turn the direction of writing and so hide what a text says.
_UNPRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_MARKS = re.compile(r"([\\`*_\[\]|~#])")


@dataclass(frozen=True, slots=True)
class _Prose:
    words: str
    is_alarm: bool = False


@dataclass(frozen=True, slots=True)
class _List:
    sentences: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Sum:
    """Lines of a calculation: sign, count, what is counted."""

    lines: Sequence[tuple[str, int, str]]


@dataclass(frozen=True, slots=True)
class _Rows:
    """A table; names of columns begin with # for numbers, with ` for what comes from the file or the warehouse."""

    names: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class _Literal:
    """Something to be read as it stands."""

    text: str
    language: str = "text"


_Block = _Prose | _List | _Sum | _Rows | _Literal
_Section = tuple[str, Sequence[_Block]]


def as_table(preview: Preview) -> RenderableType:
    """Give a preview for rich to print; 80 columns are enough, and colours only repeat what words say."""
    parts: list[RenderableType] = [
        Text.assemble((_clean(preview.campaign), "bold"), f"  {preview.period}"),
        *(_printed(block) for block in _summary(preview)),
    ]
    for title, blocks in _sections(preview):
        parts.append(Text(f"\n{title}", style="bold underline"))
        parts += [_printed(block) for block in blocks]
    return Group(*parts)


def as_markdown(preview: Preview) -> str:
    """Give a preview as Markdown with tables, without anybody's identifier: the text of an approval."""
    parts = [f"## {_code(preview.campaign)} {_code(preview.period)}"]
    parts += [_marked(block) for block in _summary(preview)]
    for title, blocks in _sections(preview):
        parts.append(f"### {_escaped(title)}")
        parts += [_marked(block) for block in blocks]
    return "\n\n".join(parts) + "\n"


def _summary(preview: Preview) -> Iterator[_Block]:
    if preview.launch_key:
        yield _Prose(f"Launch {preview.launch_key}, {preview.state}, as it was frozen.")
    else:
        yield _Prose("A preview: nothing was sent or stored.")
    if preview.already_made:
        yield from _already_made(preview, preview.already_made)
    elif not preview.would_send:
        closed = [gate.name for gate in preview.gates if not gate.is_open]
        why = f"closed gates: {', '.join(closed)}" if closed else f"the launch is {preview.state}"
        yield _Prose(f"WOULD NOT BE SENT ({why}).", is_alarm=True)
    elif preview.people is not None:
        agreed = ", once somebody agreed" if preview.approval.is_needed else ""
        yield _Prose(f"It would be sent to {_people_of(preview.people)}{agreed}.")


def _already_made(preview: Preview, made: Made) -> Iterator[_Block]:
    people = f" to {_people_of(made.people)}" if made.people is not None else ""
    if made.last_at and made.accepted == made.requests:
        yield _Prose(f"ALREADY SENT{people} at {_utc(made.last_at)}.", is_alarm=True)
    else:
        sent = f"{made.made:,} of {made.requests:,} requests were made, and {made.accepted:,} were accepted"
        yield _Prose(f"ALREADY LAUNCHED at {_utc(made.made_at)}: {sent}.", is_alarm=True)
    if preview.launch_key is None:
        rest = (
            "sends nothing more"
            if made.made == made.requests or made.state in CLOSED_STATES
            else "continues it"
        )
        yield _Prose(
            f"The ledger holds launch {made.launch_key} ({made.state}) for this period. A run for the period {rest}. "
            "To send the period again, give the run a resend number and a reason. The figures below are what the "
            "query returns now."
        )


def _sections(preview: Preview) -> Iterator[_Section]:
    if preview.warnings:
        yield "Notes", [_List(preview.warnings)]
    by = f", by {preview.identified_by}" if preview.identified_by else ""
    yield f"People{by}", list(_people(preview))
    yield from _parts(preview)
    yield "When", list(_when(preview))
    yield "Requests", list(_cost(preview))
    if preview.gates:
        rows = [
            ("open" if each.is_open else "CLOSED", each.name, each.saw, each.allowed)
            for each in preview.gates
        ]
        yield "Gates", [_Rows(("", "gate", "found", "allowed"), rows)]
    yield "Approval", [_Prose(_approval(preview))]
    if preview.renderings:
        blocks = [block for each in preview.renderings for block in _rendering(each)]
        yield "What people see", [*blocks, *_filled_in(preview.filled_in)]
    if preview.request is not None:
        shown = json.dumps(preview.request, indent=2, ensure_ascii=False)
        yield "The first request", [_Literal(shown, "json")]


def _people(preview: Preview) -> Iterator[_Block]:
    if preview.audience is None or preview.people is None:
        yield _Prose(f"{_CHOSEN[preview.targeting]}: how many they are is not known here.")
        return
    later: list[tuple[str, int]] = [
        (reason, count) for reason, count in preview.left_out.items() if reason not in preview.dropped
    ]
    lines = [("", preview.rows, "rows of the query")]
    lines += [("-", count, reason) for reason, count in preview.dropped.items()]
    lines.append(("=", preview.audience, "audience"))
    if later or preview.people != preview.audience:
        lines += [("-", count, _spoken(reason)) for reason, count in later]
        lines.append(("=", preview.people, "people who are sent to"))
    yield _Sum(lines)
    if change := preview.change:
        yield _Prose(
            f"Since the last launch ({change.period}) with {change.audience:,}: "
            f"{change.kept:,} kept, {change.new:,} new, {change.gone:,} gone."
        )
    else:
        yield _Prose("Compared with no earlier launch.")


def _parts(preview: Preview) -> Iterator[_Section]:
    """Give the sizes of the parts: what the launch makes of its people, then what the query says of the audience."""
    for name, sizes in (("variant", preview.variants), ("language of the message", preview.languages)):
        if sizes:
            yield f"By {name}", [_sizes(sizes, name.partition(" ")[0], preview.people)]
    if preview.time_zones:
        yield "By time zone", [_zones(preview.time_zones)]
    if preview.waves:
        waves = [(str(number), f"{size:,}") for number, size in enumerate(preview.waves, start=1)]
        yield "By wave", [_Rows(("wave", "#people"), waves)]
    for column, sizes in preview.groups.items():
        if sizes and not (column == "time_zone" and preview.time_zones):
            yield f"The audience by {column}", [_sizes(sizes, column, preview.audience)]


def _zones(zones: Sequence[Zone]) -> _Rows:
    """Give the time zones together that are sent to at the same time on the same clocks."""
    alike: dict[str, list[Zone]] = {}
    for zone in zones:
        at = (
            f"{zone.sends_at:%a %Y-%m-%d %H:%M (UTC%z)}" if zone.sends_at else "as soon as its window is open"
        )
        alike.setdefault(at, []).append(zone)
    rows = []
    for at, together in alike.items():
        names = [zone.time_zone for zone in together[:_MOST_ZONES]]
        if more := len(together) - len(names):
            names.append(f"{more} more")
        rows.append((at, f"{sum(zone.people for zone in together):,}", ", ".join(names)))
    return _Rows(("sent at", "#people", "`time zones"), rows)


def _sizes(sizes: Mapping[str, int], name: str, everybody: int | None) -> _Rows:
    whole = everybody or 0
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    rows = [(value, f"{size:,}", share(size, whole)) for value, size in largest[:_MOST_VALUES]]
    if more := largest[_MOST_VALUES:]:
        size = sum(size for _, size in more)
        rows.append((f"{len(more)} others", f"{size:,}", share(size, whole)))
    return _Rows((f"`{name}", "#people", "#share"), rows)


def _when(preview: Preview) -> Iterator[_Block]:
    sending = preview.sending
    yield _Prose(f"{sending.words[0].upper()}{sending.words[1:]}.")
    if sending.first_at and sending.last_at and sending.first_at != sending.last_at:
        yield _Prose(f"From {_utc(sending.first_at)} to {_utc(sending.last_at)}.")
    elif sending.first_at:
        yield _Prose(f"That is {_utc(sending.first_at)}.")


def _cost(preview: Preview) -> Iterator[_Block]:
    requests = f"{preview.requests:,} {'request' if preview.requests == 1 else 'requests'}"
    if preview.people is not None:
        requests += f" of up to {preview.segment_size:,} people each"
    if preview.seconds is None:
        took = "how long they take is not known, because no rate limit was given"
    else:
        took = f"at {preview.rate:g} a second they take {_duration(preview.seconds)} or more"
    yield _Prose(f"{requests}; {took}.")
    if preview.waves and preview.wave_wait_seconds is not None:
        yield _Prose(f"Between two waves, {_duration(preview.wave_wait_seconds)} of waiting.")


def _approval(preview: Preview) -> str:
    needed = preview.approval
    if not needed.is_needed:
        return "Nobody must agree."
    who = f"Somebody with the role {needed.role}" if needed.role else "Somebody whom Airflow lets"
    return f"{who} must agree within {_duration(needed.within_seconds)}; silence rejects."


def _rendering(rendering: Rendering) -> Iterator[_Block]:
    marks = [f"variant {rendering.variant}" if rendering.variant else None, rendering.language]
    said = ", ".join(mark for mark in marks if mark) or "Everybody"
    if rendering.people is not None:
        said += f" ({_people_of(rendering.people)})"
    elif rendering.language:
        said += " (the service chooses who reads it)"
    if rendering.template is not None:
        yield _Prose(f"{said}: the words are those of the service's campaign {rendering.template}.")
        return
    yield _Prose(f"{said}:")
    channels: dict[str, list[str]] = {}
    for channel, parts in rendering.channels.items():
        channels.setdefault("\n".join(_shown(parts)), []).append(channel)
    yield _Literal("\n".join(f"{', '.join(names)}\n{shown}" for shown, names in channels.items()))


def _filled_in(names: Sequence[str]) -> Iterator[_Block]:
    if names:
        tags = ", ".join(f"{{{{{name}}}}}" for name in names)
        yield _Prose(
            f"The service fills in {tags} from what it knows of each person. According to its public documentation, it "
            "sends no message to a person for whom it has no value."
        )


def _shown(parts: Mapping[str, str]) -> Iterator[str]:
    for name, words in parts.items():
        first, *others = words.splitlines() or [""]
        yield f"  {name:<8}{first}"
        yield from (f"          {line}" for line in others)


def _printed(block: _Block) -> RenderableType:
    match block:
        case _Prose():
            found: RenderableType = Text(_clean(block.words), style="bold red" if block.is_alarm else "")
        case _Literal():
            found = Text(_clean(block.text))
            if block.language == "json":
                found = JSONHighlighter()(found)
        case _List():
            found = _grid("", "")
            for sentence in block.sentences:
                found.add_row("-", Text(_clean(sentence)))
        case _Sum():
            found = _grid("", "#", "")
            for sign, count, what in block.lines:
                found.add_row(sign, f"{count:,}", Text(_clean(what)), style="bold" if sign == "=" else "")
        case _Rows():
            found = _grid(*block.names)
            for row in block.rows:
                found.add_row(*(Text(_clean(cell)) for cell in row))
    return Padding(found, (0, 0, 0, 2), expand=False)


def _grid(*names: str) -> Table:
    header = any(name.strip("#`") for name in names)
    grid = Table(box=None, show_header=header, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in names:
        grid.add_column(
            name.lstrip("#`"), justify="right" if name.startswith("#") else "left", overflow="fold"
        )
    return grid


def _marked(block: _Block) -> str:
    if isinstance(block, _Prose):
        words = _escaped(block.words)
        return f"**{words}**" if block.is_alarm else words
    if isinstance(block, _List):
        return "\n".join(f"- {_escaped(sentence)}" for sentence in block.sentences)
    if isinstance(block, _Literal):
        return _fenced(block)
    if isinstance(block, _Sum):
        names: Sequence[str] = ("", "#", "")
        rows: Iterable[Sequence[str]] = [(sign, f"{count:,}", what) for sign, count, what in block.lines]
    else:
        names, rows = block.names, block.rows
    cells = [_code if name.startswith("`") else _escaped for name in names]
    lines = [
        [_escaped(name.lstrip("#`")) for name in names],
        ["---:" if name.startswith("#") else "---" for name in names],
        *([write(cell) if cell else "" for write, cell in zip(cells, row, strict=True)] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fenced(block: _Literal) -> str:
    text = _clean(block.text)
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}{block.language}\n{text}\n{fence}"


def _code(words: str) -> str:
    """Give words as a span of code, in which nothing is Markdown or HTML."""
    text = _clean(words).replace("\n", " ").replace("|", "\\|")
    tick = "`" * (1 + max([0, *(len(run) for run in re.findall("`+", text))]))
    space = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{tick}{space}{text}{space}{tick}"


def _escaped(words: str) -> str:
    text = _clean(words).replace("\n", " ").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKS.sub(r"\\\1", text)


def _clean(text: str) -> str:
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def _people_of(count: int) -> str:
    return f"{count:,} {'person' if count == 1 else 'people'}"


def _spoken(reason: str) -> str:
    return "held out" if reason == "holdout" else reason


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:g} s" if seconds >= 0.1 else "0.1 s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    parts = [(days, "days" if days > 1 else "day"), (hour, "h"), (minute, "min"), (second, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count)


def _utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
