"""All code blocks of all pages are run, in order, in a folder like a clone.

Sybil reads the pages. The language of a block decides how it is checked: see ``EVALUATORS``. Authors of pages can put
one of two marks, as an HTML comment, right before a block:

``<!-- not run: REASON -->``   the block needs something that tests lack; only the names and options of its commands
                               are checked
``<!-- until it says so -->``  the output becomes true after a while; the commands are repeated for 3 minutes at most

A block with a title, as in ```` ```yaml title="greetings/campaign.yaml" ````, is written to that file.
"""

from __future__ import annotations

import doctest
import json
import re
import shutil
import sqlite3
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
import sqlalchemy as sa
import typer
import yaml
from sybil import Document, Example, Region
from sybil.example import SybilFailure
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, RawFencedCodeBlockLexer

from messaging_service.cli.main import main as service_program
from sendoff.campaign import campaign_schema, load_campaign, references_in
from sendoff.campaign.yaml_document import read_document
from sendoff.cli.commands import app
from sendoff.errors import SendoffError
from sendoff.warehouse.query import Query
from tools.reference.pages import PAGES as WRITTEN

from ...waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[3]
# Pages that continue where the previous one ends: they share one session.
TUTORIAL = [
    ROOT / "docs" / name
    for name in (
        "tutorial/first-launch.md",
        "how-to/read-a-report.md",
        "how-to/resolve-a-doubt.md",
        "tutorial/in-airflow.md",
        "how-to/send-again.md",
    )
]
# A page for readers without any settings, which sets everything it needs.
FROM_NOTHING = ROOT / "docs/how-to/connect-the-service.md"
PAGES = sorted([ROOT / "README.md", ROOT / "examples/README.md", *ROOT.glob("docs/**/*.md")])
# A program writes these pages from the code, and its test checks them.
PAGES = [path for path in PAGES if str(path.relative_to(ROOT)) not in WRITTEN]
CAMPAIGN = {"title": "A title", "message": {"text": "Hello"}, "channels": {"android_push": None}}
PERIOD = {"period_start": datetime(2026, 3, 1, tzinfo=UTC), "period_end": datetime(2026, 3, 2, tzinfo=UTC)}
MOST_NOT_RUN = 15  # blocks on all pages
PROGRAMS = {
    "sendoff": typer.main.get_command(app),
    "messaging-service": typer.main.get_command(service_program),
}

# Programs that tests do not have or must not use, with the reason why a block that starts with one is not run.
ELSEWHERE = {
    "docker": "Docker; tests/repository/test_compose.py checks it, tests/acceptance/test_cluster.py runs its parts",
    "docker/": "Docker; tests/acceptance/test_cluster.py",
    "git": "a repository to clone; .ci/run starts with a clean clone",
    "helm": "a cluster",
    "kubectl": "a cluster",
    "make": "the repository itself: `make test` runs this test, and tests/demo/test_demo.py runs the demo",
    "pip": "a package index; tests/acceptance/test_connect_it.py installs the package as README.md says",
    "psql": "a database of the reader; tests/repository/test_security.py runs the output of `sendoff grants`",
}
THEIRS = re.compile(r"@(?:db|host)\b")  # a database server of the reader


Opening = Callable[[dict[str, str]], Any]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_tutorial_and_what_goes_on_from_it_do_what_they_say(terminal: Opening) -> None:
    page = Page(lambda: terminal({}))
    for path in TUTORIAL:
        try_page(path, page)


@pytest.mark.parametrize("path", [path for path in PAGES if path not in TUTORIAL], ids=named)
def test_every_block_of_a_page_does_what_the_page_says(
    path: Path, terminal: Opening, settings: dict[str, str]
) -> None:
    try_page(path, Page(lambda: terminal({} if path == FROM_NOTHING else settings)))


def try_page(path: Path, page: Page) -> None:
    document = Document.parse(str(path), blocks, marks)
    document.namespace["page"] = page
    for example in document.examples():
        example.evaluate()


LIES = {
    "an output": "```console\n$ echo three\nfour\n```",
    "a command": "```sh\nfalse\ntrue\n```",
    "a command without output": "```console\n$ cat nothing-of-this-name\n```",
    "Python": "```python\nassert 1 == 2\n```",
    "JSON": "```json\n{'a': 1}\n```",
    "a query": "```sql\nSELECT device_id FROM nowhere\n```",
    "a field of a campaign": "```yaml\ntitle: A\nchannels:\n  pigeon_post:\n```",
    "a part of a campaign": "```yaml\ngates:\n  most: many\n```",
    "a language that nothing tries": "```cobol\nSTOP RUN.\n```",
    "a mark that gives no reason": "<!-- not run: -->\n\n```sh\nfalse\n```",
}


@pytest.mark.parametrize("text", LIES.values(), ids=LIES)
def test_a_page_that_is_not_true_is_found_out(text: str, tmp_path: Path, terminal: Opening) -> None:
    (tmp_path / "page.md").write_text(f"# A page\n\n{text}\n", encoding="utf-8")
    with pytest.raises((SybilFailure, SendoffError, ValueError, sqlite3.Error)):
        try_page(tmp_path / "page.md", Page(lambda: terminal({})))


def test_a_command_or_an_option_that_does_not_exist_is_found_out() -> None:
    assert unknown(PROGRAMS["sendoff"], ["lists", "upload", "a", "a.csv", "--column", "user_id"]) is None
    assert unknown(PROGRAMS["sendoff"], ["lists", "burn"]) == "lists burn"
    assert unknown(PROGRAMS["sendoff"], ["pause", "--because", "x"]) == "pause --because"


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    left_out = {
        f"{named(path)}:{example.line}": reason
        for path in PAGES
        for example, reason in not_run(Document.parse(str(path), blocks, marks))
    }
    for place, reason in left_out.items():
        print(f"{place}: not run, because it needs {reason}")  # noqa: T201 - pytest -rP shows it
    assert all(len(reason) > 8 for reason in left_out.values())
    assert len(left_out) <= MOST_NOT_RUN


def not_run(document: Document) -> Iterator[tuple[Example, str]]:
    """Yield the blocks that are not run, with the reason."""
    mark = None
    for example in document.examples():
        if example.region.evaluator is _note_mark:
            mark = example.parsed
            continue
        directive, said = mark or ("", "")
        language, _, source = example.parsed
        reason = said if directive == "not run" else None
        if reason is None and language in ("bash", "console", "sh"):
            reason = _wants(source)
        if reason is not None:
            yield example, reason
        mark = None


def test_the_tests_of_campaigns_take_free_ports() -> None:
    page = (ROOT / "docs/how-to/test-a-dag.md").read_text(encoding="utf-8")
    code = "".join(re.findall(r"```python.*?```", page, re.DOTALL))
    assert '"--port"' in code
    assert re.findall(r":[1-9]\d{3,4}\b|\"--port\", \"[1-9]\d*", code) == []


COMMAND = re.compile(r"(?:^|[`\s(=/])(sendoff|messaging-service)((?: +(?!-> )[^\s`|;&#()<>]+)*)")


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_every_command_that_a_page_names_is_one(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    code = [
        *re.findall(r"`([^`\n]+)`", text),
        *re.findall(r"^(?:\$ )?((?:\S*/)?(?:sendoff|messaging-service) .*)$", text, re.MULTILINE),
    ]
    wrong = {
        problem
        for line in code
        for program, words in COMMAND.findall(line)
        if (problem := unknown(PROGRAMS[program], words.split()))
    }
    assert wrong == set()


def unknown(command: Any, words: list[str]) -> str | None:
    """Return the first word that is not a command, or not an option of its command. None if there is no such word."""
    while (within := getattr(command, "commands", {})) and words and not words[0].startswith("-"):
        if words[0] not in within:
            return f"{command.name} {words[0]}"
        command, words = within[words[0]], words[1:]
    options = {"--help", *(name for each in command.params for name in each.opts)}
    asked = [word.split("=")[0] for word in words if word.startswith("--")]
    return next((f"{command.name} {each}" for each in asked if each not in options), None)


@dataclass
class Page:
    """A page during its test: its shell, and the mark of the next block."""

    open_terminal: Callable[[], Any]
    mark: tuple[str, str] | None = None

    @property
    def terminal(self) -> Any:
        return self.open_terminal()

    def taken(self, directive: str) -> str | None:
        """Return the text of the next block's mark and remove it, if it is of this kind; otherwise None."""
        if self.mark and self.mark[0] == directive:
            said, self.mark = self.mark[1], None
            return said
        return None


def _page(example: Example) -> Page:
    page: Page = example.namespace["page"]
    return page


def _note_mark(example: Example) -> None:
    _page(example).mark = example.parsed


def _try_block(example: Example) -> str | None:
    """Check a block according to its language. Return the problem, or None."""
    page, (language, title, source) = _page(example), example.parsed
    reason = page.taken("not run")
    is_shell = EVALUATORS.get(language) in (_try_commands, _try_session)
    if is_shell and not reason:
        reason = _wants(source)
    if reason is not None:
        return None if len(reason) > 10 else "a mark without a reason"
    if language not in EVALUATORS:
        return f"the tests cannot check a block of {language}"
    if title:
        if f"`{title}`" not in example.document.text[: example.start].rsplit("```", 1)[-1]:
            return f"not every reader sees titles: the text before the block must name `{title}`"
        file: Path = page.terminal.where() / title
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page.terminal.as_here(source), encoding="utf-8")
    problem = EVALUATORS[language](example, source)
    page.mark = None
    return problem


def _wants(source: str) -> str | None:
    """Return what a block of commands needs that tests lack, or None."""
    if THEIRS.search(source):
        return "a database server of the reader; tests/unit runs the commands on SQLite and PostgreSQL"
    first = re.findall(r"(?:^(?:\$ )?|\| )(\w[\w-]*(?:/(?=\w))?)", source, re.MULTILINE)
    return next((ELSEWHERE[word] for word in first if word in ELSEWHERE), None)


def _try_commands(example: Example, source: str) -> str | None:
    output, is_done = _page(example).terminal.run(source)
    return None if is_done else f"a command failed:\n{output}"


def session(source: str) -> list[tuple[str, str]]:
    """Split a session into commands with their output: ``$`` starts a command, and ``>`` continues it."""
    steps: list[tuple[str, str]] = []
    for line in source.splitlines(keepends=True):
        if line.startswith("$ "):
            steps.append((line[2:], ""))
        elif line.startswith("> ") or line == ">\n":
            command, shown = steps.pop()
            steps.append((command + line[2:], shown))
        else:
            command, shown = steps.pop()
            steps.append((command, shown + line))
    return steps


def _try_session(example: Example, source: str) -> str | None:
    page = _page(example)
    until = page.taken("until it says so") is not None
    for command, shown in session(source):
        give_up = time.monotonic() + (PATIENCE if until else 0)
        while problem := _differs(page.terminal, command, shown):
            if time.monotonic() > give_up:
                return problem
            time.sleep(0.5)
    return None


def _differs(terminal: Any, command: str, shown: str) -> str | None:
    """Run a command. Return how its output differs from the expected output, in which ``...`` matches anything."""
    output, is_done = terminal.run(command.rstrip("\n"))
    got = "".join(f"{line.rstrip()}\n" for line in output.splitlines())
    checker, rules = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.REPORT_NDIFF
    if not is_done:
        return f"{command} failed:\n{got}"
    if checker.check_output(shown, got, rules):
        return None
    return f"{command}{checker.output_difference(doctest.Example('', shown), got, rules)}"


def _try_python(example: Example, source: str) -> str | None:
    """Run a block of Python, unless it has a title: then the page shows the command that runs it."""
    page, (_, title, _) = _page(example), example.parsed
    if title:
        return None
    file: Path = page.terminal.folder / "dags/block.py"  # a DAG looks for campaigns in its own folder
    file.write_text(source, encoding="utf-8")
    return _try_commands(example, f"python -W ignore {file}")


def _try_json(_: Example, source: str) -> str | None:
    json.loads(source)
    return None


def _try_toml(_: Example, source: str) -> str | None:
    tomllib.loads(source)
    return None


def _try_yaml(example: Example, source: str) -> str | None:
    """Load a campaign, a part of one, or the defaults of one, as a campaign. Parse any other YAML."""
    fields = campaign_schema()["properties"]
    folder = _page(example).terminal.folder / f"campaign-{example.line}"
    folder.mkdir()
    if (example.parsed[1] or "").endswith("/defaults.yaml"):
        (folder / "defaults.yaml").write_text(source, encoding="utf-8")
        folder, source = folder / "campaign", yaml.safe_dump(CAMPAIGN)
        folder.mkdir()
    (folder / "campaign.yaml").write_text(source, encoding="utf-8")
    tree = None
    if not re.search(r"^[\w.-]+/|^---$|\{\{\{", source, re.MULTILINE) and _is_mapping(source):
        tree = read_document(folder / "campaign.yaml").tree
    if tree is None or not set(tree) <= set(fields):
        list(yaml.safe_load_all(source))
        return None
    for file in (*ROOT.glob("examples/campaigns/*/*.csv"), *ROOT.glob("examples/campaigns/*/*.sql")):
        if file.name != "audience.sql":
            shutil.copy(file, folder)
    if not {"channels", "template"} & set(tree):
        rest = {name: value for name, value in CAMPAIGN.items() if name not in tree}
        (folder / "campaign.yaml").write_text(yaml.safe_dump(rest) + source, encoding="utf-8")
    parts = " WHERE device_id % :parts = :part" if "partitions" in tree.get("audience", {}) else ""
    columns = "".join(f", 'x' AS {name}" for name in tree.get("template", {}).get("columns", []))
    if "targeting" not in tree and "source" not in tree.get("audience", {}):
        (folder / "audience.sql").write_text(f"SELECT device_id{columns} FROM devices{parts}")
    load_campaign(folder)
    return None


def _is_mapping(source: str) -> bool:
    return bool(re.search(r"^\w+:", source, re.MULTILINE))


def _try_sql(_: Example, source: str) -> str | None:
    """Run an audience query on the examples' warehouse for one day. Check that any other query is SQL."""
    for reference, start, end in reversed(references := references_in(source)):
        source = source[:start] + reference.names[-1] + source[end:]
    named = set(re.findall(r"(?<![:\w]):(\w+)", source))
    if references or not named <= {*PERIOD, "part", "parts"}:
        duckdb.extract_statements(re.sub(r"(?<![:\w]):(\w+)", r"$\1", source))
        return None
    period: dict[str, Any] = {**PERIOD, "parts": 4, "part": 1} if "parts" in named else {**PERIOD}
    with closing(sqlite3.connect(":memory:")) as shop:
        shop.executescript((ROOT / "examples/warehouse.sql").read_text(encoding="utf-8"))
        shop.execute(Query(source, period, 1, sa.make_url("sqlite://")).with_literals())
    return None


def _nothing(_: Example, source: str) -> str | None:
    return None if source.strip() else "an empty block"


EVALUATORS: dict[str, Callable[[Example, str], str | None]] = {
    "": _nothing,
    "bash": _try_commands,
    "console": _try_session,
    "dockerfile": _nothing,
    "json": _try_json,
    "nginx": _nothing,
    "python": _try_python,
    "sh": _try_commands,
    "sql": _try_sql,
    "text": _nothing,
    "toml": _try_toml,
    "yaml": _try_yaml,
}

INFO = re.compile(r'(?P<language>\w*)(?: title="(?P<title>[^"\n]+)")?[ \t]*\n')


def blocks(document: Document) -> Iterator[Region]:
    """Find the code blocks."""
    for region in RawFencedCodeBlockLexer(INFO)(document):
        lexemes = region.lexemes
        region.parsed = (lexemes["language"], lexemes["title"], lexemes["source"])
        region.evaluator = _try_block
        yield region


def marks(document: Document) -> Iterator[Region]:
    """Find the marks of blocks."""
    for directive in ("not run", "until it says so"):
        for region in DirectiveInHTMLCommentLexer(directive)(document):
            region.parsed = (directive, str(region.lexemes["arguments"]).strip())
            region.evaluator = _note_mark
            yield region
