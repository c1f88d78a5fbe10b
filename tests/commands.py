"""Running the command ``sendoff`` in the process of the tests."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest


def clear_settings(patch: pytest.MonkeyPatch) -> None:
    """Remove the variables that are settings of Sendoff."""
    for name in [name for name in os.environ if name.startswith("SENDOFF_")]:
        patch.delenv(name)


def run_command(patch: pytest.MonkeyPatch, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``sendoff`` with these words, and return its output."""
    from sendoff.cli import main

    patch.setattr(sys, "argv", ["sendoff", *words])
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        main()
    return subprocess.CompletedProcess(words, int(end.value.code or 0), out.getvalue(), err.getvalue())
