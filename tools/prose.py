"""Check the prose of pages, docstrings and comments: ``python -m tools.prose [--count] [PATH ...]``.

proselint reads the texts with its own checks and with ours. Docstrings must not start with *Give*, *Say*, *Tell* or
*Let*. Sentences must have at most 30 words. Phrases that readers must parse twice have a plain replacement. Each
stretch of code counts as one word.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import proselint.checks
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, CheckResult, engine, types
from proselint.tools import LintFile

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**/*.md", "examples/**/*.md"]
CODE = [f"{folder}/**/*.py" for folder in ("dags", "examples", "include", "plugins", "tests", "tools")]
MOST_WORDS = 30

# The phrases, each with its replacement.
PHRASES = {
    r"whom": "who, or the noun",
    r"(of|in|on|for|from|by|to|with) which": "a second sentence, or that",
    r"nobody": "no one, or the noun with no",
    r"somebody": "someone, or the role",
    r"stands? (in|over)": "is in",
    r"(is|are|was|were) told": "receives, or learns",
    r"shall": "must, or will",
    r"(is|are|was|were) not to be": "must not be",
    r"whence|whereof|wherein|thereof|therein": "a plain word",
    r"(knows?|says?|tells?|shows?|of|and|in|to|from|with|by|for|on|what) what (is|was|are|were)": "the noun",
    r"What (is|was|are|were) [^.?\n|]{1,60} (is|are|was|were|goes|comes|stays|stands|runs)": "the noun",
}
# Checks of proselint that do not apply to these texts, each with the reason.
OFF = {
    "lexical_illusions": "a heading may repeat the words before it",
    "typography": "quotes, dots and multiplication signs are those of code",
    "hedging": "this project says what it does not know",
    "annotations": "'todo' appears in examples",
}

_SENTENCE_END = re.compile(
    r"(?<=[.!?:;])[\"')\]*_]*\s+(?=[\"'(\[*_]*(?:[A-Zx`]|[a-z_]+: ))|\n\s*\n|\n\s*(?:[-*+]|\d+\.|#+|>)\s+|\||\n(?=#)"
)
_LITERAL_BLOCK = re.compile(r"^( *)(?:\.\. code-block::[^\n]*|[^\n]*::)\n(?:\n|\1 +[^\n]*\n)+", re.MULTILINE)
_PARAMETER = re.compile(r"^\s*:\w+[^:]*:|^``[^`]+``  ")
_WORD = re.compile(r"[A-Za-z0-9][\w',.%-]*")
_PASSIVE = re.compile(
    r"\b(?:am|is|are|was|were|be|been|being|gets?|got)\b(?:\s+\w+ly|\s+not|\s+never|\s+only|\s+also)?\s+"
    r"(?:\w{2,}ed|sent|made|kept|held|read|written|given|taken|known|seen|shown|found|told|built|drawn|put|set|left|lost|"
    r"begun|cut|chosen|done|gone|meant|paid|run|said|thrown|understood|told)\b"
)


def main() -> None:
    """Print all findings, or with ``--count`` the figures. Exit with 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "paths", nargs="*", type=Path, help="files to read; all pages and code, if none is named"
    )
    parser.add_argument(
        "--count", action="store_true", help="print figures of the texts in place of the findings"
    )
    options = parser.parse_args()
    paths = options.paths or sorted({path for glob in PAGES + CODE for path in ROOT.glob(glob)})
    if options.count:
        for name, chosen in {"pages": ".md", "code": ".py"}.items():
            texts = [prose(path) for path in paths if path.suffix == chosen]
            sys.stdout.write(f"{name} {figures(texts)}\n")
        return
    found = [f"{path}:{line}: {message}" for path in paths for line, message in findings(path)]
    sys.stdout.write("\n".join(found or [f"prose: {len(paths)} files, nothing to mend"]) + "\n")
    sys.exit(bool(found))


def findings(path: Path) -> list[tuple[int, str]]:
    """Return the findings in a file, each with its line and text."""
    _register()
    checks = dict.fromkeys((check.path.split(".")[0] for check in CheckRegistry().checks), True)
    checks |= dict.fromkeys([*OFF, "restricted"], False)
    checks["sendoff.opening"] = path.suffix == ".py"
    ordered = {name: checks[name] for name in sorted(checks, key=lambda name: -name.count("."))}
    results = LintFile(str(path), prose(path)).lint({"max_errors": 10_000, "checks": ordered})
    return [
        (result.pos[0], f"{result.check_result.message} [{result.check_result.check_path}]")
        for result in results
    ]


def prose(path: Path) -> str:
    """Return the text of a file that people read, with each word on its original line."""
    text = path.read_text(encoding="utf-8")
    return _mask_code(_comments_and_docstrings(text) if path.suffix == ".py" else _mask_blocks(text))


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a text, each with its position."""
    start = 0
    for end in (*_SENTENCE_END.finditer(text), None):
        sentence = text[start : end.start() if end else len(text)]
        if len(_WORD.findall(sentence)) > 1:
            yield start + len(sentence) - len(sentence.lstrip()), sentence.strip()
        start = end.end() if end else start


def figures(texts: list[str]) -> dict[str, float]:
    """Return the numbers of words and sentences, and the shares of long sentences, passives and phrases."""
    every = [sentence for text in texts for _, sentence in sentences(text)]
    words = sum(len(_WORD.findall(sentence)) for sentence in every)
    phrases = Counter(
        {phrase: sum(len(re.findall(rf"(?i)\b(?:{phrase})\b", text)) for text in texts) for phrase in PHRASES}
    )
    return {
        "words": words,
        "sentences": len(every),
        "long_share": round(
            sum(len(_WORD.findall(each)) > MOST_WORDS for each in every) / max(1, len(every)), 4
        ),
        "passive_share": round(sum(bool(_PASSIVE.search(each)) for each in every) / max(1, len(every)), 3),
        "phrases_per_1000_words": round(1000 * phrases.total() / max(1, words), 2),
    }


def _long_sentences(text: str, check: Check) -> Iterator[CheckResult]:
    for start, sentence in sentences(text):
        count = len(_WORD.findall(sentence))
        if count > MOST_WORDS:
            message = check.message.format(count, " ".join(sentence.split()[:8]))
            yield CheckResult(check.path, message, (start + 1, start + len(sentence)), None)


def _register() -> None:
    registry = CheckRegistry()
    if registry.checks:
        return
    registry.register_many(proselint.checks.__register__)
    flexible = engine.Fast(opts=engine.RegexOptions(case_insensitive=False))
    for phrase, instead in PHRASES.items():
        registry.register(
            Check(
                types.ExistenceSimple(rf"(?i)\b(?:{phrase})\b"),
                engine=flexible,
                path="sendoff.phrase",
                message=f"'{{}}': write {instead}",
            )
        )
    registry.register(
        Check(
            types.ExistenceSimple(r"¶ (Gives?|Says?|Tells?|Lets?)\b"),
            engine=flexible,
            path="sendoff.opening",
            message="'{}' opens a docstring: write Return, Describe, Print, Allow, or another verb of the field",
        )
    )
    registry.register(
        Check(
            _long_sentences,
            path="sendoff.length",
            message=f"{{}} words in a sentence, at most {MOST_WORDS}: {{}} ...",
        )
    )


def _mask_blocks(text: str) -> str:
    """Remove code blocks, comments and tags from Markdown, and keep the text of links."""
    blank = lambda match: re.sub(r"[^\n]", " ", match[0])  # noqa: E731
    text = (
        re.sub(r"^---\n.*?\n---$", blank, text, count=1, flags=re.DOTALL | re.MULTILINE)
        if text.startswith("---")
        else text
    )
    text = re.sub(r"^( *)(```+|~~~+).*?^\1\2[^\n]*$", blank, text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->|</?[a-zA-Z][^>]*>", blank, text, flags=re.DOTALL)
    text = re.sub(r"^\|[-: |]+\|$", blank, text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", lambda match: " " * len(match[0]), text)


def _mask_code(text: str) -> str:
    """Replace each stretch of code, role and URL by one word."""
    text = re.sub(r":\w+:(?=`)", lambda match: " " * len(match[0]), text)
    text = re.sub(r"(`+)[^`]+\1", lambda match: re.sub(r"[^\n]", "x", match[0]), text)
    return re.sub(r"https?://[^\s)>\]]+", lambda match: "x" * len(match[0]), text)


def _comments_and_docstrings(source: str) -> str:
    lines = [""] * (source.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row = token.start[0] - 1
        comment = token.string.lstrip("#! ")
        if token.type == tokenize.COMMENT and not re.match(r"(noqa|type:|pragma|fmt:|ruff:|-\*-)", comment):
            alone = not source.splitlines()[row][: token.start[1]].strip()
            lines[row] = re.sub(r"\s*# noqa.*", "", comment) if alone else f"- {comment}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            node.body and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
        ):
            value = node.body[0].value
            if isinstance(value.value, str):
                shown = _LITERAL_BLOCK.sub(lambda found: "\n" * found[0].count("\n"), value.value)
                for offset, line in enumerate(shown.splitlines()):
                    line = re.sub(r"^\s*>>>.*", "", line)  # noqa: PLW2901
                    lines[value.lineno - 1 + offset] = (
                        f"¶ {line}" if offset == 0 else _PARAMETER.sub("- ", line)
                    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
