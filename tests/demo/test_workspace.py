"""The folder of the demo."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from sendoff.demo.options import DemoError
from sendoff.demo.progress import ProgressDisplay
from sendoff.demo.workspace import Workspace


def test_a_new_demo_begins_with_an_empty_folder(tmp_path: Path) -> None:
    with Workspace(tmp_path / "demo") as workspace:
        (workspace.airflow / "logs").mkdir(parents=True)
        workspace.warehouse.touch()
    with Workspace(tmp_path / "demo") as workspace:
        assert [path.name for path in workspace.folder.iterdir()] == [
            "this-folder-belongs-to-the-sendoff-demo"
        ]


def test_a_folder_that_no_demo_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(DemoError, match="Choose another folder with --workspace"), Workspace(tmp_path):
        pass
    assert (tmp_path / "thesis.txt").exists()


def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        Workspace(tmp_path) as first,
        pytest.raises(DemoError, match="Another demo is running"),
        Workspace(tmp_path),
    ):
        first.warehouse.touch()
    with Workspace(tmp_path):
        assert not first.warehouse.exists()


def test_progress_in_a_file_is_a_line_now_and_then_and_not_one_for_each_step() -> None:
    written, seconds = StringIO(), 0.0
    with ProgressDisplay(Console(file=written), clock=lambda: seconds) as screen:
        for step in range(50):
            screen.doing(f"step {step}")
            seconds += 0.125
        screen.done("steps", "fifty")
        screen.done("rest", "nothing")
    assert (
        written.getvalue() == "  ... step 0\n  ... step 40\nsteps      fifty  [6.2 s]\nrest       nothing\n"
    )
