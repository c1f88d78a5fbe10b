"""docs/reference/ and the generated diagrams: each matches the code and is complete."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

from messaging_service.cli.main import main as service
from sendoff import errors
from sendoff.cli.commands import app
from sendoff.ledger.storage.schema import metadata

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CODE = [ROOT / "include", ROOT / "plugins", ROOT / "dags", ROOT / "docker", ROOT / "docker-compose.yml"]
PACKAGES = {
    "sendoff": ROOT / "include/sendoff",
    "sendoff_airflow": ROOT / "plugins/sendoff_airflow",
    "messaging_service": ROOT / "include/messaging_service",
}
USABLE = re.compile(r"^class ([A-Z]\w*(?:Operator|Sensor|Trigger|Hook|Notifier|Link))\b", re.MULTILINE)
# They have no execute method.
FOR_OTHERS = {
    "AskingOperator",
    "LaunchEventOperator",
    "LaunchOperator",
    "LedgerOperator",
    "NotifyingOperator",
    "OneCampaignOperator",
    "PreparingOperator",
    "QueryingOperator",
}
VARIABLE = re.compile(r"\b(?:SENDOFF|MESSAGING_SERVICE)(?:_[A-Z]+)+\b")


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[ModuleType, dict[str, str]]]:
    """The current output of the generator, by path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        from tools.reference import pages

        yield pages, dict(pages.written())


def test_every_page_and_picture_is_what_the_code_says(made: tuple[ModuleType, dict[str, str]]) -> None:
    pages, written = made
    changed = [path for path, text in written.items() if (ROOT / path).read_text(encoding="utf-8") != text]
    assert changed == [], f"run: {pages.COMMAND}"


def test_what_is_out_of_date_is_named_and_written(
    made: tuple[ModuleType, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pages, _ = made
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "BLOCKS", {})
    monkeypatch.setattr(pages, "PAGES", {"docs/reference/errors.md": pages.PAGES["docs/reference/errors.md"]})
    assert pages.main(["--check"]) == 1
    assert capsys.readouterr().out == "docs/reference/errors.md is out of date: python -m tools.reference\n"
    assert pages.main([]) == 0
    assert pages.main(["--check"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("page", ["", "(", ")(", "())"])
def test_a_page_without_its_marks_is_left_alone(page: str, made: tuple[ModuleType, dict[str, str]]) -> None:
    pages, _ = made
    with pytest.raises(ValueError, match="once each and in this order"):
        pages.between(page, "(", ")", "")


def test_every_operator_sensor_trigger_hook_and_link_has_a_section() -> None:
    page = _page("operators")
    modules = PACKAGES["sendoff_airflow"].rglob("*.py")
    named = {name for file in modules for name in USABLE.findall(file.read_text(encoding="utf-8"))}
    assert {"CreateCampaignOperator", "PostBacksQuietSensor", "PostBacksQuietTrigger", "SendoffHook"} <= named
    assert [name for name in sorted(named - FOR_OTHERS) if f"\n### {name}\n" not in page] == []


def test_every_parameter_of_an_operator_or_a_sensor_has_a_meaning() -> None:
    written_by_people, _, _ = _page("operators").partition("## Triggers")
    assert re.findall(r"^.*\|  \|$", written_by_people, re.MULTILINE) == []


def test_every_function_that_makes_dags_has_a_section() -> None:
    code = (PACKAGES["sendoff_airflow"] / "dags" / "__init__.py").read_text(encoding="utf-8")
    made = re.findall(r'^    "([a-z]\w+)",$', code, re.MULTILINE)
    assert {"campaign_dags", "reconcile_dag"} <= set(made)
    assert [name for name in made if f"\n### {name}\n" not in _page("dag-factory")] == []


def test_every_variable_that_something_reads_is_on_the_page() -> None:
    files = [
        file
        for place in CODE
        for file in ([place] if place.is_file() else place.rglob("*"))
        if file.is_file()
    ]
    files += [file for file in (ROOT / "tests").rglob("*.py") if file != Path(__file__)]
    read = {name for file in files for name in VARIABLE.findall(_text(file))}
    assert {"SENDOFF_LEDGER_URL", "SENDOFF_LOG_FORMAT", "SENDOFF_TEST_POSTGRES_URL"} <= read
    assert sorted(read - set(VARIABLE.findall(_page("settings")))) == []


@pytest.mark.parametrize(
    ("name", "command", "page"),
    [("sendoff", app, "commands"), ("messaging-service", service, "service-commands")],
)
def test_every_command_with_every_option_is_on_the_page(name: str, command: Any, page: str) -> None:
    sections = re.split(r"^##+ ", _page(page), flags=re.MULTILINE)
    by_title = {section.partition("\n")[0].strip("`"): section for section in sections[1:]}
    found = dict(_commands(get_command(command), name))
    assert found.keys() == by_title.keys()
    missing = [
        (title, option)
        for title, each in found.items()
        for option in each
        if f"`{option}" not in by_title[title] and f", {option}" not in by_title[title]  # after a short form
    ]
    assert missing == []


def test_every_table_with_every_column_is_on_the_page() -> None:
    sections = re.split(r"^## ", _page("ledger"), flags=re.MULTILINE)
    shown = {
        section.partition("\n")[0]: set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
        for section in sections[1:]
    }
    assert shown == {table.name: set(table.columns.keys()) for table in metadata.tables.values()}


def test_the_picture_of_the_ledger_has_an_arrow_for_each_foreign_key() -> None:
    keys = {
        (table.name, key.column.table.name)
        for table in metadata.tables.values()
        for key in table.foreign_keys
    }
    assert set(_arrows("ledger")) == keys
    assert set(_boxes("ledger")) == set(metadata.tables)


def test_every_error_is_on_the_page_and_of_one_kind() -> None:
    kinds = dict(re.findall(r"^\| `(\w+Error)` \| (\w+) \|", _page("errors"), re.MULTILINE))
    own = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, errors.SendoffError)
    }
    assert kinds.keys() == own
    assert {name for name, kind in kinds.items() if kind == "any"} == {"SendoffError"}


def test_the_map_says_of_each_package_what_it_imports(made: tuple[ModuleType, dict[str, str]]) -> None:
    from tools.reference.code_map import ROOTS, boxes_of, imports_between_modules

    box = boxes_of(imports_between_modules())
    real: dict[str, set[str]] = {name: set() for name in box.values()}
    modules = {
        _name(package, file): file for package, place in PACKAGES.items() for file in place.rglob("*.py")
    }
    for module, file in modules.items():
        if module in ROOTS:  # it only names what its packages hold
            continue
        imported = {_known(name, modules) for name in _imports(module, file)} - {None}
        real[box[module]] |= {box[name] for name in imported if name} - {box[module]}
    assert _boxes("code-map") == real


def test_the_arrows_of_the_map_lead_to_everything_that_is_imported_and_nowhere_else() -> None:
    arrows: dict[str, set[str]] = {}
    for upper, lower in _arrows("code-map"):
        arrows.setdefault(upper, set()).add(lower)
    for name, needs in _boxes("code-map").items():
        assert arrows.get(name, set()) <= needs
        assert needs <= _reached(name, arrows)


def test_parts_that_need_each_other_cannot_be_drawn(made: tuple[ModuleType, dict[str, str]]) -> None:
    from graphlib import CycleError

    from tools.reference.drawing import Box, drawn

    boxes = [Box("one"), Box("other")]
    with pytest.raises(CycleError):
        drawn(boxes, {"one": {"other"}, "other": {"one"}}, "A knot", "")


def test_a_drawing_does_not_depend_on_the_order_in_which_needs_are_told(
    made: tuple[ModuleType, dict[str, str]],
) -> None:
    from tools.reference.drawing import Box, drawn

    boxes = [Box(name) for name in "abcdefghijklmnop"]
    needs: dict[str, Any] = {"a": list("bcdefghijklm"), "m": ["n"], "b": ["n", "o"]}
    turned = {name: each[::-1] for name, each in reversed(needs.items())}
    assert drawn(boxes, needs, "", "") == drawn(boxes, turned, "", "")


def test_no_more_boxes_stand_side_by_side_than_fit(made: tuple[ModuleType, dict[str, str]]) -> None:
    from tools.reference.drawing import Box, drawn

    picture = drawn([Box(str(number)) for number in range(30)], {}, "", "")
    tops = re.findall(r'<g class="own".*? y="(\d+)"', picture)
    assert max(map(tops.count, tops)) <= 7


@pytest.mark.parametrize(
    ("docstring", "text"),
    [
        ("Read :meth:`~sendoff.x.Y.go` and ``a | b``.", "Read `go` and `a | b`."),
        (
            "Before.\n\n.. code-block:: text\n\n    a -> b\n\nAfter.",
            "Before.\n\n```text\na -> b\n```\n\nAfter.",
        ),
    ],
)
def test_docstrings_become_markdown(
    made: tuple[ModuleType, dict[str, str]], docstring: str, text: str
) -> None:
    from tools.reference.markdown import prose

    assert prose(docstring) == text


def _page(name: str) -> str:
    return (DOCS / f"reference/{name}.md").read_text(encoding="utf-8")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:  # an image
        return ""


def _commands(command: Any, name: str) -> Iterator[tuple[str, list[str]]]:
    for each in getattr(command, "commands", {}).values():
        title = f"{name} {each.name}"
        yield title, [option for given in each.params for option in given.opts if option.startswith("--")]
        yield from _commands(each, title)


def _arrows(picture: str) -> list[tuple[str, str]]:
    text = (DOCS / f"pictures/{picture}.svg").read_text(encoding="utf-8")
    return [(upper, lower) for upper, lower in re.findall(r'data-edge="(.*?) &gt; (.*?)"', text)]


def _boxes(picture: str) -> dict[str, set[str]]:
    text = (DOCS / f"pictures/{picture}.svg").read_text(encoding="utf-8")
    found = re.findall(r'data-box="(.*?)">(?:<title>imports: (.*?)</title>)?', text)
    return {name: set(_split(needs)) for name, needs in found}


def _split(needs: str) -> list[str]:
    return [] if needs in ("", "nothing") else needs.split("; ")


def _reached(name: str, arrows: dict[str, set[str]]) -> set[str]:
    direct = arrows.get(name, set())
    return direct.union(*(_reached(each, arrows) for each in direct))


def _name(package: str, file: Path) -> str:
    parts = [package, *file.relative_to(PACKAGES[package]).with_suffix("").parts]
    return ".".join(part for part in parts if part != "__init__")


def _known(name: str, modules: dict[str, Path]) -> str | None:
    return next((each for each in (name, name.rpartition(".")[0]) if each in modules), None)


def _imports(module: str, file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_page_of_the_library_describes_the_arguments_of_each_call(
    made: tuple[ModuleType, dict[str, str]],
) -> None:
    _, written = made
    calls = dict(part.split("\n\n", 1) for part in written["docs/reference/python.md"].split("\n### App."))
    assert calls["launch"].startswith("`launch(name, period, *, resend)`")
    own = "| `name` | `str \\| None` | `None` | the name of the campaign; by default that of its folder |"
    assert own in calls["prepare"]
    assert own in calls["preview"]
