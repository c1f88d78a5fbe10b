"""docs/pictures/code-map.svg: which part of the code imports which, from the imports themselves.

A part is what one would explain in one go. Grimp reads the imports, those inside of functions and of TYPE_CHECKING
among them. An arrow that follows from others is left out of the drawing; the note of each box names everything that it
imports. Parts that import each other have no order, and are an error.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

import grimp

from reference.drawing import Box, drawn, reduced

PARTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "sendoff": {
        "errors, outcomes": ("", "errors", "outcome", "network", "private_files"),
        "settings, logs": ("settings", "logs", "telemetry"),
        "metrics": ("metrics", "metrics_table"),
        "identifiers": ("identifiers", "shares"),
        "queries, warehouses": ("query", "query_text", "warehouse"),
        "campaign": ("period", "campaign"),
        "audience": ("columns", "audience", "parameters", "segments"),
        "wire, post-backs": ("wire", "postbacks"),
        "ledger": ("ledger",),
        "left out": ("people_file", "left_out"),
        "launch": ("reach", "gates", "sample", "launch"),
        "preview": ("sending", "rendering", "preview", "preview_text"),
        "client": ("keys", "expiry", "token_endpoint", "auth", "transport", "client"),
        "dispatch": ("sender", "clearance", "spread", "dispatch"),
        "control": ("control", "lookup"),
        "receiver": ("endpoint", "group_commit", "receiver"),
        "fold, reconcile": ("places", "tally", "fold", "reconcile"),
        "silence": ("silence",),
        "figures": ("figures",),
        "report": ("comparison", "picture", "charts", "report", "report_page", "sentences"),
        "export, outcomes": ("export", "export_table", "outcome_query"),
        "upkeep": ("observe", "maintenance"),
        "command line": ("cli",),
        "demo": ("demo",),
    },
    "sendoff_airflow": {
        "Airflow: connections": ("", "failures", "stats", "stores", "fields", "hook"),
        "Airflow: operators": (
            *("period", "tables", "lineage", "assets", "xcoms", "notes", "operators", "approval", "doubts"),
            *("reports", "maintenance", "triggers", "sensors"),
        ),
        "Airflow: DAGs": ("alerts", "documentation", "dags", "example_dags"),
        "Airflow: pages": ("views", "links", "messages", "plugin", "provider"),
    },
    "messaging_service": {
        "Service: store": ("", "store"),
        "Service: names, fields": ("names", "replies", "fields", "spellings", "schedule"),
        "Service: clients": ("scopes", "keys", "clients", "tokens", "callers"),
        "Service: people": (
            "conditions",
            "content",
            "consistency",
            "directory",
            "segments",
            "targeting",
            "profiles",
        ),
        "Service: campaigns": ("campaigns", "executions", "hits", "rendering"),
        "Service: faults": ("faults", "fault_routes", "spoiling"),
        "Service: post-backs": ("claims", "clock", "destinations", "resolving", "postbacks"),
        "Service: deliveries": ("behaviour", "outcomes", "webhooks", "deliveries"),
        "Service: interface": (
            *("visitors", "listing", "requests", "external", "token_requests", "openapi", "control", "admin"),
            "breakdowns",
        ),
        "Service: pages": ("pages",),
        "Service: processes": ("children", "worker", "app", "answering", "server"),
        "Service: commands": ("terminal", "fault_commands", "commands", "cli"),
    },
}
_GROUPS = {"sendoff": "own", "sendoff_airflow": "airflow", "messaging_service": "service"}


def picture() -> str:
    """Draw the parts and what they import."""
    graph = grimp.build_graph(*PARTS, cache_dir=None)
    needs = imports(graph)
    boxes = [_box(graph, package, name, needs[name]) for package, parts in PARTS.items() for name in parts]
    return drawn(
        boxes,
        reduced(needs),
        "The map of the code",
        "Each part stands above all that it imports. An arrow that follows from others is left out.",
    )


def imports(graph: grimp.ImportGraph) -> dict[str, set[str]]:
    """Give of each part the other parts that its modules import; KeyError for a module that is in no part."""
    part = {module: part_of(module) for module in graph.modules}
    needs: dict[str, set[str]] = {name: set() for parts in PARTS.values() for name in parts}
    for module in sorted(graph.modules):
        needed = {part[each] for each in graph.find_modules_directly_imported_by(module)}
        needs[part[module]] |= needed - {part[module]}
    return needs


def part_of(module: str) -> str:
    """Give the part that a module belongs to, by its package or its file right below the package."""
    package, _, rest = module.partition(".")
    first = rest.partition(".")[0]
    for name, own in PARTS[package].items():
        if first in own:
            return name
    raise KeyError(f"{module} is in no part of reference/code_map.py")


def _box(graph: grimp.ImportGraph, package: str, name: str, needed: set[str]) -> Box:
    modules = [module for module in PARTS[package][name] if f"{package}.{module}" in graph.modules]
    note = f"imports: {'; '.join(sorted(needed)) or 'nothing'}"
    return Box(name, tuple(_lines(modules)), _GROUPS[package], note)


def _lines(modules: list[str]) -> Iterator[str]:
    yield from textwrap.wrap(", ".join(modules), 34)
