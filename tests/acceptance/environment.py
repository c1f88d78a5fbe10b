"""New environments with links to the packages of this one, which is faster than installing them."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path


def linked_environment(place: Path) -> Path:
    """Create a virtual environment with everything that is installed here except Sendoff. Return its command folder."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    [packages] = place.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "sendoff" not in entry.name and entry.suffix != ".pth" and not (packages / entry.name).exists():
            (packages / entry.name).symlink_to(entry)
    commands = place / "bin"
    for name, module in (("airflow", "airflow.__main__"), ("pip", "pip._internal.cli.main")):
        command = commands / name
        command.write_text(f"#!{commands / 'python'}\nfrom {module} import main\nmain()\n")
        command.chmod(0o755)
    return commands
