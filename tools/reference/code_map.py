"""Draw docs/pictures/code-map.svg: the packages and their imports.

A box is a package, or a top-level module outside of the packages. Modules that import no package of their root share
one box, the ground. Grimp reads the imports, including those inside functions and under TYPE_CHECKING. Arrows that
follow from others are left out of the drawing, but the note of each box lists all its imports. Packages that import
each other are an error.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping

import grimp

from tools.reference.drawing import Box, drawn, reduced

ROOTS = {"sendoff": "own", "sendoff_airflow": "airflow", "messaging_service": "service"}
"""The root packages, and the CSS class of their boxes."""


def picture() -> str:
    """Draw the packages and their imports."""
    graph = imports_between_modules()
    boxes = boxes_of(graph)
    needs = imports(graph, boxes)
    members = defaultdict(list)
    for module, box in sorted(boxes.items()):
        members[box].append(module)
    return drawn(
        [_box(box, members[box], needs[box]) for box in members],
        reduced(needs),
        "The map of the code",
        "Each package is above all packages that it imports. Arrows that follow from others are left out.",
    )


def imports_between_modules() -> grimp.ImportGraph:
    """Return the imports of all modules, except those of the roots, which only name what their packages hold."""
    graph = grimp.build_graph(*ROOTS, cache_dir=None)
    for root in ROOTS:
        for imported in graph.find_modules_directly_imported_by(root):
            graph.remove_import(importer=root, imported=imported)
    return graph


def imports(graph: grimp.ImportGraph, boxes: Mapping[str, str]) -> dict[str, set[str]]:
    """Return, for each box, the other boxes that its modules import."""
    needs: dict[str, set[str]] = {box: set() for box in boxes.values()}
    for module, box in boxes.items():
        needs[box] |= {boxes[name] for name in graph.find_modules_directly_imported_by(module)} - {box}
    return needs


def boxes_of(graph: grimp.ImportGraph) -> dict[str, str]:
    """Return the box of every module."""
    return {module: box for root in ROOTS for module, box in _boxes_of_root(graph, root).items()}


def _boxes_of_root(graph: grimp.ImportGraph, root: str) -> dict[str, str]:
    modules = {root, *graph.find_descendants(root)}
    box = {module: ".".join(module.split(".")[:2]) for module in modules}
    packages = {child for child in graph.find_children(root) if graph.find_children(child)}
    ground = {child for child in box.values() if child not in packages}
    while above := {
        child
        for child in ground
        if {box[name] for name in graph.find_modules_directly_imported_by(child) if name in box} - ground
    }:
        ground -= above
    return {module: f"{root}: ground" if name in ground else name for module, name in box.items()}


def _box(name: str, modules: Iterable[str], needed: set[str]) -> Box:
    root, _, rest = name.partition(".")
    label = rest or root
    depth = 1 if name.endswith(": ground") else 2
    inside = sorted({part for module in modules if (part := ".".join(module.split(".")[depth : depth + 1]))})
    note = f"imports: {'; '.join(sorted(needed)) or 'nothing'}"
    lines = textwrap.wrap(", ".join(inside), 34)
    return Box(name, tuple(lines), ROOTS[label if label in ROOTS else root.partition(":")[0]], note)
