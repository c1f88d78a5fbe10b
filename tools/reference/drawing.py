"""Draw boxes in layers as SVG, with arrows from each box down to the boxes that it needs.

A box is above all boxes that it needs, directly or indirectly. Boxes without arrows are at the bottom. The number of
boxes in a layer is limited. An arrow that crosses a layer gets a place there, so that it runs between the boxes. The
same boxes and arrows always make the same drawing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import pairwise
from xml.sax.saxutils import escape, quoteattr

from sendoff.report.tokens import light_colours

WIDTH, PAD, LINE, TITLE = 240, 10, 15, 20  # of a box, in pixels
BETWEEN, BELOW, PASSAGE, MARGIN = 20, 64, 12, 24
_SWEEPS = 24
_MOST = 7  # boxes in a layer
_PULL = 0.95  # moves places towards the middle

Needs = Mapping[str, Set[str]]
"""For each box, the names of the boxes that it needs."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box with a name and lines below it; ``group`` is the CSS class of its colour."""

    name: str
    lines: tuple[str, ...] = ()
    group: str = "own"
    note: str = ""

    @property
    def height(self) -> float:
        """The height in pixels."""
        return 2 * PAD + TITLE + LINE * len(self.lines)


@dataclass(slots=True)
class _Place:
    """The place of a box, or of a passing arrow, in a layer; ``x`` is its centre."""

    key: str
    layer: int
    width: float
    box: Box | None = None
    x: float = 0.0
    above: list[_Place] = field(default_factory=list)
    below: list[_Place] = field(default_factory=list)


def drawn(boxes: Sequence[Box], needs: Needs, title: str, description: str) -> str:
    """Draw boxes and arrows. Raise graphlib.CycleError if boxes need each other."""
    layers, chains = _placed(boxes, needs)
    _order(layers)
    _spread(layers)
    tops = _tops(layers)
    left = min(place.x - place.width / 2 for layer in layers for place in layer) - MARGIN
    right = max(place.x + place.width / 2 for layer in layers for place in layer) + MARGIN
    bottom = tops[0] + max(place.box.height for place in layers[0] if place.box) + MARGIN
    size = f'width="{right - left:.0f}" height="{bottom:.0f}"'
    seen = f'viewBox="{left:.0f} 0 {right - left:.0f} {bottom:.0f}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {seen} {size} role="img">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(description)}</desc>",
        _STYLE,
        f'<rect class="page" x="{left:.0f}" width="100%" height="100%"/>',
        *(_arrow(names, chain, tops) for names, chain in chains.items()),
        *(_box(place, tops[place.layer]) for layer in reversed(layers) for place in layer if place.box),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def reduced(needs: Needs) -> dict[str, set[str]]:
    """Return the needs without those that a box also reaches through another box."""
    reached: dict[str, set[str]] = {}
    for name in TopologicalSorter(needs).static_order():
        direct = needs.get(name, set())
        reached[name] = set(direct).union(*(reached[each] for each in direct))
    return {
        name: {each for each in direct if not any(each in reached[other] for other in direct)}
        for name, direct in needs.items()
    }


def _placed(
    boxes: Sequence[Box], needs: Needs
) -> tuple[list[list[_Place]], dict[tuple[str, str], list[_Place]]]:
    known = {box.name: box for box in boxes}
    level = _levels([box.name for box in boxes], needs)
    layers: list[list[_Place]] = [[] for _ in range(max(level.values()) + 1)]
    places = {box.name: _Place(box.name, level[box.name], WIDTH, known[box.name]) for box in boxes}
    for place in places.values():
        layers[place.layer].append(place)
    chains = {}
    for name, place in places.items():
        for other in sorted(needs.get(name, ())):
            passages = [
                _Place(f"{name}>{other}", layer, PASSAGE)
                for layer in range(level[name] - 1, level[other], -1)
            ]
            for passage in passages:
                layers[passage.layer].append(passage)
            chain = [place, *passages, places[other]]
            for upper, lower in pairwise(chain):
                upper.below.append(lower)
                lower.above.append(upper)
            chains[name, other] = chain
    return layers, chains


def _levels(names: Sequence[str], needs: Needs) -> dict[str, int]:
    """Return the layer of each box; 0 is the lowest."""
    joined = {each for name in names for each in needs.get(name, ())} | {
        name for name in names if needs.get(name)
    }
    alone = [name for name in names if name not in joined]
    ground = -(-len(alone) // _MOST)
    level = {name: index * ground // len(alone) for index, name in enumerate(alone)}
    taken: Counter[int] = Counter()
    order = {name: sorted(needs.get(name, ())) for name in names if name in joined}
    for name in TopologicalSorter(order).static_order():
        level[name] = max((level[each] + 1 for each in order[name]), default=ground)
        while taken[level[name]] == _MOST:
            level[name] += 1
        taken[level[name]] += 1
    return level


def _order(layers: Sequence[list[_Place]]) -> None:
    """Sort each layer by the positions of its neighbours in several sweeps, so that few arrows cross."""
    rank = {id(place): index for layer in layers for index, place in enumerate(layer)}

    def middle(place: _Place, joined: Sequence[_Place]) -> tuple[float, str]:
        ranks = [rank[id(each)] / max(1, len(layers[each.layer]) - 1) for each in joined]
        own = rank[id(place)] / max(1, len(layers[place.layer]) - 1)
        return (round(sum(ranks) / len(ranks) if ranks else own, 6), place.key)

    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in reversed(layers) if down else layers:
            layer.sort(key=lambda place: middle(place, place.above if down else place.below))
            rank.update({id(place): index for index, place in enumerate(layer)})


def _spread(layers: Sequence[list[_Place]]) -> None:
    """Set the x of each place, near the places that it is connected to."""
    for layer in layers:
        _apart(layer, [0.0] * len(layer))
    for sweep in range(_SWEEPS):
        for layer in layers if sweep % 2 else reversed(layers):
            joined = [place.above + place.below for place in layer]
            wished = [
                _PULL * sum(each.x for each in near) / len(near) if near else _PULL * place.x
                for place, near in zip(layer, joined, strict=True)
            ]
            _apart(layer, wished)


def _apart(layer: Sequence[_Place], wished: Sequence[float]) -> None:
    """Place a layer as near to the wished positions as widths allow, as the mean of a pass in each direction."""

    def step(one: _Place, other: _Place) -> float:
        return (one.width + other.width) / 2 + BETWEEN

    rightward, leftward = list(wished), list(wished)
    for index in range(1, len(layer)):
        least = rightward[index - 1] + step(layer[index - 1], layer[index])
        rightward[index] = max(wished[index], least)
    for index in range(len(layer) - 2, -1, -1):
        most = leftward[index + 1] - step(layer[index], layer[index + 1])
        leftward[index] = min(wished[index], most)
    for place, one, other in zip(layer, rightward, leftward, strict=True):
        place.x = round((one + other) / 2, 1)


def _tops(layers: Sequence[Sequence[_Place]]) -> list[float]:
    tops, y = [0.0] * len(layers), float(MARGIN)
    for index in range(len(layers) - 1, -1, -1):
        tops[index] = y
        y += max(place.box.height for place in layers[index] if place.box) + BELOW
    return tops


def _arrow(names: tuple[str, str], chain: Sequence[_Place], tops: Sequence[float]) -> str:
    first, last = chain[0], chain[-1]
    assert first.box is not None
    x, y = first.x, tops[first.layer] + first.box.height
    path = [f"M{x:.0f} {y:.0f}"]
    for place in chain[1:]:
        top = tops[place.layer]
        bend = (top - y) / 2
        path.append(f"C{x:.0f} {y + bend:.0f} {place.x:.0f} {top - bend:.0f} {place.x:.0f} {top:.0f}")
        x, y = place.x, top
        if place is not last:
            y = tops[place.layer - 1] - BELOW
            path.append(f"L{x:.0f} {y:.0f}")
    head = f"M{x - 4:.0f} {y - 7:.0f}L{x:.0f} {y:.0f}L{x + 4:.0f} {y - 7:.0f}"
    return f'<path class="arrow" data-edge={quoteattr(" > ".join(names))} d="{"".join(path)}{head}"/>'


def _box(place: _Place, top: float) -> str:
    box = place.box
    assert box is not None
    left = place.x - WIDTH / 2
    lines = [
        f'<g class="{box.group}" data-box={quoteattr(box.name)}>'
        + (f"<title>{escape(box.note)}</title>" if box.note else "")
        + f'<rect x="{left:.0f}" y="{top:.0f}" width="{WIDTH}" height="{box.height:.0f}" rx="6"/>',
        f'<text class="name" x="{left + PAD:.0f}" y="{top + PAD + 12:.0f}">{escape(box.name)}</text>',
    ]
    for number, line in enumerate(box.lines):
        y = top + PAD + TITLE + 11 + number * LINE
        lines.append(f'<text x="{left + PAD:.0f}" y="{y:.0f}">{escape(line)}</text>')
    return "\n".join([*lines, "</g>"])


_COLOURS = light_colours()
_STYLE = f"""\
<style>
.page {{ fill: {_COLOURS["ground"]} }}
.arrow {{ fill: none; stroke: {_COLOURS["pale"]}; stroke-width: 1.2; opacity: .75 }}
text {{ font: 11px system-ui, sans-serif; fill: {_COLOURS["pale"]} }}
.name {{ font-size: 13px; font-weight: 600; fill: {_COLOURS["ink"]} }} rect {{ stroke: {_COLOURS["pale"]} }}
.own rect {{ fill: {_COLOURS["done"]} }} .airflow rect {{ fill: {_COLOURS["alarm"]} }}
.service rect {{ fill: {_COLOURS["raised"]} }}
</style>"""
