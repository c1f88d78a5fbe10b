"""Reading YAML: libyaml and PyYAML's own parser must read the same in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from sendoff.campaign.yaml_document import YamlDocument, read_document

ROOT = Path(__file__).resolve().parents[3]
FILES = [*ROOT.glob("dags/campaigns/*/campaign.yaml"), *ROOT.glob("examples/campaigns/*/campaign.yaml")]
PIECES = [
    *("a", "b: ", "c:", "- ", "-", "? ", ": ", "|", ">", "|-", ">+", "|2", "{", "}", "[", "]", ",", "#", " # c"),
    *("'", '"', "'x'", '"x"', '"\\n"', '"\\u0041"', "''", "\\", "&a ", "*a", "!", "!!str ", "%", "@", "`", "~"),
    *("null", "true", "1", "-0", "1.5", "1e5", "0x1", "---", "...", "\n", "\n\n", " ", "  ", "\n  ", "\n    "),
    *("\t", "\r\n", "\x85", "\u2028", "\ufeff", "é", "😀", "<<: ", "=", "http://x.y", "18:30", "2027-01-31"),
]  # fmt: skip


def both(folder: Path, text: str) -> list[YamlDocument]:
    """Read a file with libyaml, and with PyYAML's own parser alone."""
    assert yaml.__with_libyaml__
    file = folder / "campaign.yaml"
    file.write_text(text, newline="")
    with_libyaml = read_document(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "__with_libyaml__", False)
        return [with_libyaml, read_document(file)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("yaml")


@given(st.lists(st.sampled_from(PIECES), max_size=24).map("".join))
@example("a: ! b")
@example("a: ! 'b'\n")
@example("a:\tb")
@example("%YAML 1.2\n---\na: b")
@example("a: |\n\n   b\n  c\n")
@example("- - a\n  -\n- {b: [c, ], d}\n- ? e\n")
def test_libyaml_and_pyyaml_read_the_same(folder: Path, text: str) -> None:
    with_libyaml, without = both(folder, text)
    assert with_libyaml == without


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=20,
    ),
    st.booleans() | st.none(),
    st.booleans(),
)
def test_what_pyyaml_writes_is_read_the_same(
    folder: Path, tree: object, flow: bool | None, allow_unicode: bool
) -> None:
    text = yaml.safe_dump(tree, default_flow_style=flow, allow_unicode=allow_unicode)
    with_libyaml, without = both(folder, text)
    assert with_libyaml == without


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_the_examples_are_read_the_same(folder: Path, file: Path) -> None:
    with_libyaml, without = both(folder, file.read_text())
    assert with_libyaml == without
    assert not with_libyaml.problems


def test_each_place_has_its_line(tmp_path: Path) -> None:
    file = tmp_path / "campaign.yaml"
    file.write_text("a: 1\nb:\n  - c\n  - d: |\n      e\n\nf: {g: [h]}\n")
    assert read_document(file).lines == {
        (): 1,
        ("a",): 1,
        ("b",): 2,
        ("b", 0): 3,
        ("b", 1): 4,
        ("b", 1, "d"): 4,
        ("f",): 7,
        ("f", "g"): 7,
        ("f", "g", 0): 7,
    }


def test_a_mistake_of_the_whole_file_is_in_its_first_line() -> None:
    document = YamlDocument()
    document.report(("title",), "is missing")
    assert document.problems == [(1, "is missing")]
