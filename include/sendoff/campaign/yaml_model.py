"""Read the YAML text of a setting, and report its mistakes as those of campaign files."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from sendoff.campaign.error_messages import MOST_MISTAKES, sentences
from sendoff.campaign.yaml_document import document_of
from sendoff.errors import SettingsError

T = TypeVar("T")


def read_setting(text: str, expected: TypeAdapter[T], place: str) -> T:
    """Return the value of a YAML text. Raise one SettingsError with a line for each mistake.

    ``place``: the file or the variable with the text, which begins each line.
    """
    document = document_of(text)
    if not document.problems:
        try:
            return expected.validate_python(document.tree)
        except ValidationError as error:
            errors = error.errors(include_url=False)[:MOST_MISTAKES]
            for path, sentence in sentences(errors, expected.json_schema()):
                document.report(path, sentence)
    raise SettingsError("\n".join(map(str, document.findings(Path(place)))))
