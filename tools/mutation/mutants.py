"""All single-line mutants of a file: a flipped comparison, a dropped condition, a number that is off by one."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "include"
PACKAGES = ("ledger", "dispatch", "postbacks", "audience", "launch", "comparison", "campaign", "service")

_FLIPPED = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
}
_SWAPPED = {"and_": "or_", "or_": "and_", "min": "max", "max": "min", "any": "all", "all": "any"}
_CONDITIONS = {"where", "and_", "or_"}  # a condition is dropped from calls of these
# Nothing depends on these: logs, metrics, and texts for people, whose wording tests do not repeat.
_SKIPPED_CALLS = {"_log", "metrics", "warnings", "cast", "TypeVar", "field", "Column", "Index", "Table"}
_LARGE = 50  # of this number or a larger one, one more is little
# server.py runs only in processes that the acceptance tests start.
_SKIPPED_FILES = ("migrations", "__init__.py", "schema.py", "server.py")


@dataclass(frozen=True, slots=True)
class Place:
    """The lines of a statement without its body, and those of the outermost function around it."""

    statement: range
    function: range | None


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed line. ``key`` finds it again after other lines have moved."""

    path: str  # below include
    line: int
    start: int  # in bytes, as ``ast`` counts
    end: int
    text: str  # what stands there instead
    before: str
    after: str

    @property
    def key(self) -> str:
        """Return the file and the line, before and after."""
        return f"{self.path}: {self.before} -> {self.after}"

    @property
    def place(self) -> Place:
        """Return the statement and the function that it changes."""
        return _place((SOURCES / self.path).read_bytes(), self.line)

    def source(self) -> bytes:
        """Return the file with the changed line. Raise SyntaxError if it cannot be compiled."""
        lines = (SOURCES / self.path).read_bytes().splitlines(keepends=True)
        lines[self.line - 1] = _replaced(lines[self.line - 1], self.start, self.end, self.text)
        source = b"".join(lines)
        compile(source, self.path, "exec")
        return source


@lru_cache(1_000)
def _place(source: bytes, line: int) -> Place:
    statement, function = range(line, line + 1), None
    for node in ast.walk(ast.parse(source)):  # outer nodes come first
        if isinstance(node, ast.stmt) and node.lineno <= line <= (end := node.end_lineno or line):
            body = getattr(node, "body", [])
            statement = range(node.lineno, max(body[0].lineno, node.lineno + 1) if body else end + 1)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body[0].lineno <= line:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                function = function or range(first, end + 1)
    return Place(statement, function)


def lines_that_use(
    path: str, line: int, runs_on_import: Callable[[str, int], bool] = lambda *_: False
) -> dict[str, set[int]]:
    """Return, by file, the lines in functions that use by name what a line on import defines, also indirectly.

    ``runs_on_import``: tells whether a line in a function runs on import. Then what uses the function counts too.
    """
    found: defaultdict[str, set[int]] = defaultdict(set)
    definition = _statement_at(_tree(path), line)
    names = [(path, name) for name in _defined(definition)]
    if isinstance(definition, ast.FunctionDef | ast.ClassDef):
        found[path] |= set(range(definition.lineno, (definition.end_lineno or line) + 1))
    for file, name in names:  # grows
        for statement in _tree(file).body:
            bodies = list(_bodies(statement))
            for node in ast.walk(statement):
                if not (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)):
                    continue
                is_inside = any(node.lineno in body for body in bodies)
                if is_inside:
                    found[file].add(node.lineno)
                if not is_inside or runs_on_import(file, node.lineno):
                    names += [(file, each) for each in _defined(statement) if (file, each) not in names]
        names += [each for each in _importers().get((_module(file), name), ()) if each not in names]
    return found


@cache
def _importers() -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Return the files that import a name of a module from it, each with the name it gives to it."""
    found: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    # Packages load what these name.
    for file in sorted([*SOURCES.rglob("*.py"), *SOURCES.rglob("__init__.pyi")]):
        path = file.relative_to(SOURCES).as_posix()
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.ImportFrom):
                module = f"{_module(path)}.{node.module}" if node.level else node.module or ""
                for alias in node.names:
                    found[module, alias.name].append((path, alias.asname or alias.name))
    return found


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse((SOURCES / path).read_bytes())


def _module(path: str) -> str:
    return path.rpartition(".")[0].removesuffix("/__init__").replace("/", ".")


def _statement_at(tree: ast.Module, line: int) -> ast.stmt:
    return next(each for each in reversed(tree.body) if each.lineno <= line or each is tree.body[0])


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    return [
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


def _bodies(statement: ast.stmt) -> Iterator[range]:
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            first = node.body if isinstance(node, ast.Lambda) else node.body[0]
            yield range(first.lineno, (node.end_lineno or node.lineno) + 1)


def all_mutants() -> list[Mutant]:
    """Return the mutants of all core packages in a fixed order."""
    files = sorted(file for name in PACKAGES for file in (SOURCES / "sendoff" / name).rglob("*.py"))
    return [
        mutant
        for file in files
        if not any(part in _SKIPPED_FILES for part in file.parts)
        for mutant in mutants_of(file.relative_to(SOURCES).as_posix(), file.read_bytes())
    ]


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return the mutants of one file."""
    lines = source.splitlines()
    found = []
    for line, start, end, text in sorted(set(_changes(ast.parse(source), lines))):
        changed = _replaced(lines[line - 1], start, end, text)
        before, after = (each.decode().strip() for each in (lines[line - 1], changed))
        found.append(Mutant(path, line, start, end, text, before, after))
    return found


def _replaced(line: bytes, start: int, end: int, text: str) -> bytes:
    return line[:start] + text.encode() + line[end:]


_Change = tuple[int, int, int, str]  # line, first byte, end, new text


def _changes(tree: ast.Module, lines: list[bytes]) -> Iterator[_Change]:
    sizes = {each.targets[0].id for each in tree.body if _is_size(each)}  # type: ignore[attr-defined]
    for node in _walk(tree):
        if isinstance(node, ast.Compare | ast.BoolOp | ast.BinOp):
            yield from _of_operators(node, lines, sizes)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node.lineno, node.col_offset, node.operand.col_offset, ""
        elif isinstance(node, ast.Call):
            yield from _of_call(node)
        elif isinstance(node, ast.Constant):
            yield from _of_constant(node)
        elif isinstance(node, ast.If | ast.IfExp) and _is_on_one_line(node.test):
            yield _over(node.test, "False")
        elif isinstance(node, ast.Return | ast.Expr | ast.AugAssign) and _is_on_one_line(node):
            yield from _of_statement(node)


def _of_operators(
    node: ast.Compare | ast.BoolOp | ast.BinOp, lines: list[bytes], sizes: set[str]
) -> Iterator[_Change]:
    if isinstance(node, ast.Compare):
        # The next number counts as well if < becomes <=, as if the size were one more.
        is_of_size = isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE) and _names(node) & sizes
        if len(node.ops) == 1 and not is_of_size:
            yield from _operator(node.left, node.ops[0], node.comparators[0], lines)
    elif isinstance(node, ast.BinOp):
        yield from _operator(node.left, node.op, node.right, lines)
    else:
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _operator(left, node.op, right, lines)
        yield from _dropped(node.values)


def _of_constant(node: ast.Constant) -> Iterator[_Change]:
    if isinstance(node.value, bool):
        yield _over(node, str(not node.value))
    elif isinstance(node.value, int):
        yield _over(node, str(node.value + 1))


def _of_statement(node: ast.Return | ast.Expr | ast.AugAssign) -> Iterator[_Change]:
    if not isinstance(node, ast.Return):
        yield _over(node, "pass")
    elif not (node.value is None or (isinstance(node.value, ast.Constant) and not node.value.value)):
        yield _over(node, "return None")  # which is not just another false value


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what tests can notice: no annotations, no texts, no decorators, no logs."""
    if _is_skipped(node):
        return
    yield node
    skipped = {"annotation", "returns", "decorator_list", "type_params", "slice"}
    if isinstance(node, ast.Call) and _names(node.func) == {"zip"}:
        skipped.add("keywords")  # strict=True only checks what is true anyway
    for name, value in ast.iter_fields(node):
        if name in skipped:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_batch_size(node, child):
                yield from _walk(child)


def _is_batch_size(call: ast.AST, child: ast.AST) -> bool:
    """Check for an argument that only says how many rows the database sends at a time."""
    if isinstance(child, ast.keyword):
        return child.arg in {"max_row_buffer", "stream_results", "yield_per"}
    return isinstance(call, ast.Call) and _names(call.func) == {"streamed"} and child in call.args[1:]


def _is_size(node: ast.AST) -> bool:
    """Check for a private constant such as ``_AT_ONCE = 1 << 16``. One more changes nothing but the speed."""
    if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
        return False
    is_number = all(
        isinstance(each, ast.BinOp | ast.operator | ast.Constant) for each in ast.walk(node.value)
    )
    name = node.targets[0].id
    is_large = is_number and (_value(node.value) >= _LARGE or name.endswith("_AT_ONCE"))
    return name.startswith("_") and name.isupper() and is_large


def _value(node: ast.expr) -> float:
    found = eval(compile(ast.Expression(node), "", "eval"))  # noqa: S307 (numbers of our own code)
    return found if isinstance(found, int) else 0


def _is_skipped(node: ast.AST) -> bool:
    match node:
        case ast.Call():
            return bool(_names(node.func) & _SKIPPED_CALLS)
        case ast.Expr():
            is_count = isinstance(node.value, ast.Call) and _names(node.value.func) == {"count"}  # of a trace
            return is_count or isinstance(node.value, ast.Constant | ast.Yield) or _is_skipped(node.value)
        case ast.If():
            only_logs = not node.orelse and all(map(_is_skipped, node.body)) and not _calls(node.test)
            return only_logs or "TYPE_CHECKING" in _names(node.test)
        case ast.FunctionDef():
            return node.name == "__repr__"
        case ast.Return(ast.Name("NotImplemented")):
            return True  # no code compares or joins the value with one of another type
    return isinstance(node, ast.Raise | ast.Import | ast.ImportFrom | ast.JoinedStr) or _is_size(node)


def _calls(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) for each in ast.walk(node))


def _names(node: ast.AST) -> set[str]:
    return {
        part.id if isinstance(part, ast.Name) else part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Name | ast.Attribute)
    }


def _operator(left: ast.expr, operator: ast.AST, right: ast.expr, lines: list[bytes]) -> Iterator[_Change]:
    old, new = _FLIPPED.get(type(operator), ("", ""))
    if not old or left.end_lineno != right.lineno or left.end_col_offset is None:
        return
    between = lines[right.lineno - 1][left.end_col_offset : right.col_offset].decode()
    if (place := between.find(old)) >= 0:
        start = left.end_col_offset + place
        yield right.lineno, start, start + len(old), new


def _dropped(values: list[ast.expr]) -> Iterator[_Change]:
    """Drop the last condition of several on one line."""
    before, last = values[-2:]
    if before.end_lineno == last.lineno == last.end_lineno and last.end_col_offset is not None:
        assert before.end_col_offset is not None
        yield last.lineno, before.end_col_offset, last.end_col_offset, ""


def _of_call(node: ast.Call) -> Iterator[_Change]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    end = node.func.end_col_offset
    if name in _SWAPPED and end is not None and node.func.end_lineno is not None:
        yield node.func.end_lineno, end - len(name), end, _SWAPPED[name]
    if name in _CONDITIONS and len(node.args) > 1:
        for number, each in enumerate(node.args):
            if _is_on_one_line(each) and not isinstance(each, ast.Starred):
                yield _over(each, "True" if name == "and_" and number == 0 else "*()")


def _over(node: ast.expr | ast.stmt, text: str) -> _Change:
    assert node.end_col_offset is not None
    return node.lineno, node.col_offset, node.end_col_offset, text


def _is_on_one_line(node: ast.expr | ast.stmt) -> bool:
    return node.lineno == node.end_lineno
