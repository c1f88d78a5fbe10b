"""Reading identifiers from CSV files, and errors that quote nothing of a file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from sendoff.audience.csv_list import count_people, kind_of, read_people
from sendoff.audience.identifiers import empty, integers, strings
from sendoff.errors import AudienceError, UsageError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "staff.csv"


# Valid files, and their identifiers.
READ = [
    ("device_id\n7\n9\n7\n", "device_id", integers([7, 9])),
    ('name,DEVICE_ID,since\nann,7,2020\n"b,\nc",9,2021\n', "device_id", integers([7, 9])),
    ("\ufeffdevice_id\r\n7\r\n", "device_id", integers([7])),  # as a spreadsheet writes it
    (
        "device_id,x\n,1\n-3,1\n0,1\n7,1\n",
        "device_id",
        integers([7]),
    ),  # empty cells, and numbers that are not identifiers
    ("device_id\n", "device_id", empty("integer")),
    (
        'name;device_id\n"b;\nc";7\n"a,b";9\n',
        "device_id",
        integers([7, 9]),
    ),  # as a German spreadsheet writes it
    ("name\tdevice_id\nann\t7\n", "device_id", integers([7])),
    ("device_id\n9223372036854775807\n", "device_id", integers([2**63 - 1])),
    ('user_id,x\n007,1\nzoë,1\n"",1\n"a,b",1\n', "user_id", strings(["007", "zoë", "a,b"])),
    ('user_id,x\nann  ,1\n" ann",1\n"  ",1\n', "user_id", strings(["ann"])),
    ("user_id\nNA\nnull\n", "user_id", strings(["NA", "null"])),  # ordinary names
]


@pytest.mark.parametrize(("text", "column", "people"), READ)
def test_the_people_of_one_column_are_read(file: Path, text: str, column: str, people: object) -> None:
    file.write_text(text, encoding="utf-8", newline="")
    kind = "string" if column == "user_id" else "integer"
    assert read_people(file, column, kind) == people  # type: ignore[arg-type]


def test_the_content_of_a_file_is_counted_as_the_file_is(file: Path) -> None:
    content = b"device_id,x\n7,1\n,1\n-3,1\n7,1\n"
    file.write_bytes(content)
    for given in (file, content):
        counted = count_people(given, "device_id", "integer")
        assert counted.identifiers() == integers([7])
        assert (counted.rows, counted.null, counted.invalid, counted.duplicate) == (4, 1, 1, 1)
    with pytest.raises(AudienceError, match=r"^the file, line 2: the value"):
        count_people(b"device_id\nann4711\n", "device_id", "integer")


def test_a_large_file_is_read_in_parts(file: Path) -> None:
    everybody = np.arange(1, 400_001)
    file.write_text("device_id\n" + "\n".join(map(str, everybody)))
    assert read_people(file, "device_id", "integer") == integers(everybody)


# Wrong files, and their errors; each contains an identifier that must not be in the error.
BROKEN = [
    (b"device_id\n4711\nann4711\n", "line 3: the value in the column device_id is not a whole number"),
    (b"device_id\n9223372036854784711\n", "line 2: .* of at most 9,223,372,036,854,775,807"),
    (b"device_id\n4711\n99999999999999999999\n", "line 3: the value in the column device_id is not a whole"),
    (b'x,device_id\n"a\nb",4711\n\nNA,\nc,4711.5\n', "line 6: the value in the column device_id"),
    (b"device_id,x\n4711,1\n4711,1,2\n", "line 3: the number of values is 3, but the header has 2"),
    (
        b"device_id;x\n4711;a\n4712;b;c\n",
        "line 3: the number of values is 3, but the header has 2. .* semicolons",
    ),
    (b"device_id;device_id\n4711;4712\n", "found column device_id 2 times"),
    (
        b"device\n4711\n",
        "found no column device_id in the first line. Use a header with one such column",
    ),
    (
        b"User_ID,name\n4711,ann4711\n",
        "found no column device_id in the first line, but user_id. .* or choose the other column",
    ),
    (b"device_id,Device_ID\n4711,4711\n", "found column device_id 2 times"),
    (b"4711\n", "found no column device_id"),
    (b"", "the file is empty. Write the names of its columns into the first line"),
    (b'device_id,x\n4711,a\n4712,"b\n4713,c\n', "line 3: a quotation mark begins a value and none ends it"),
    (b'device_id,x\n4711,"a\n4712,b\n4713,"c\n', "line 2: a quotation mark begins a value and none ends it"),
    (b"\xff\xfe4711", "line 1: found text that is not UTF-8"),
    (
        b"device_id,x\n4711,a\n4712,zo\xeb\n",
        "line 3: found text that is not UTF-8. Save the file as CSV in UTF-8",
    ),
]


@pytest.mark.parametrize(("content", "said"), BROKEN)
def test_an_error_names_file_and_column_and_no_value(file: Path, content: bytes, said: str) -> None:
    file.write_bytes(content)
    with pytest.raises(AudienceError, match=said) as error:
        read_people(file, "device_id", "integer")
    assert str(file) in str(error.value)
    assert "4711" not in str(error.value)
    assert error.value.__suppress_context__ or error.value.__context__ is None


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    writing = threading.Thread(target=pipe.write_text, args=('device_id,note\n7,"a, b"\n8,\n',))
    writing.start()
    assert list(read_people(pipe, "device_id", "integer")) == [7, 8]
    writing.join()


def test_a_file_that_is_not_there_is_told(file: Path) -> None:
    with pytest.raises(AudienceError, match=r"staff.csv: the file does not exist"):
        read_people(file, "device_id", "integer")


def test_text_that_is_not_utf_8_is_told(file: Path) -> None:
    file.write_bytes(b"user_id\nzo\xeb4711\n")
    with pytest.raises(AudienceError, match="line 2: found text that is not UTF-8") as error:
        read_people(file, "user_id", "string")
    assert "4711" not in str(error.value)


def test_a_column_has_the_kind_that_an_audience_has_by_it() -> None:
    assert [
        kind_of(column) for column in ("device_id", "device_token", "device_uuid", "external_id", "user_id")
    ] == [
        "integer",
        "string",
        "string",
        "string",
        "string",
    ]
    assert kind_of("device_token", numbers=True) == "integer"
    with pytest.raises(UsageError, match=r"found column email\. Use device_id, device_token"):
        kind_of("email")
    with pytest.raises(UsageError, match=r"found user_id as numbers\. Use user_id as text"):
        kind_of("user_id", numbers=True)
