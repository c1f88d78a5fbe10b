"""Write the generated pages and pictures of the documentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tools.reference import (
    airflow_names,
    campaigns,
    code_map,
    commands,
    dag_factory,
    errors,
    hold_above,
    ledger_tables,
    library,
    metrics,
    result_tables,
    settings,
)
from tools.reference.markdown import between

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "python -m tools.reference"

PAGES: Mapping[str, Callable[[], str]] = {
    "docs/reference/operators.md": airflow_names.page,
    "docs/reference/dag-factory.md": dag_factory.page,
    "docs/reference/python.md": library.page,
    "docs/reference/settings.md": settings.page,
    "docs/reference/commands.md": commands.page,
    "docs/reference/service-commands.md": commands.page_of_service,
    "docs/reference/ledger.md": ledger_tables.page,
    "docs/reference/result-tables.md": result_tables.page,
    "docs/reference/errors.md": errors.page,
    "docs/reference/campaign-fields.md": campaigns.page_of_fields,
    "docs/reference/journey-fields.md": campaigns.page_of_journey_fields,
    "docs/reference/campaign-examples.md": campaigns.page_of_examples,
    "docs/pictures/ledger.svg": ledger_tables.picture,
    "docs/pictures/code-map.svg": code_map.picture,
}
BLOCKS: Mapping[str, Callable[[], str]] = {
    "docs/reference/gates.md": hold_above.block,
    "docs/reference/observability.md": metrics.block,
}
"""A block of a page that is otherwise written by hand. It is between the marks BEGIN and END."""
BEGIN, END = f"<!-- begin: {COMMAND} -->", f"<!-- end: {COMMAND} -->"


def main(arguments: Sequence[str]) -> int:
    """Write all files, or with ``--check`` print the ones that would change; return the exit code."""
    found = []
    for path, text in written():
        file = ROOT / path
        if "--check" not in arguments:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            found.append(f"{path} is out of date: {COMMAND}")
    print(*found, sep="\n", end="\n" if found else "")  # noqa: T201
    return bool(found)


def written() -> Iterator[tuple[str, str]]:
    """Yield the path and content of each file; pages name the command that writes them in their first lines."""
    for path, make in PAGES.items():
        text = make()
        if path.endswith(".md"):
            title, _, rest = text.partition("\n")
            text = f"{title}\n\n<!-- written by: {COMMAND} -->\n{rest}"
        yield path, text
    for path, make in BLOCKS.items():
        yield path, between((ROOT / path).read_text(encoding="utf-8"), BEGIN, END, make())
