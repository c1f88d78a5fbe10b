"""The ``sendoff`` command. It does not need Airflow. Each module holds the commands of one subject."""

import sys


def main() -> None:
    """Run the command. Exit with code 130 on Ctrl-C, also while the modules of the commands are imported."""
    try:
        from sendoff.cli.commands import run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("sendoff: interrupted\n")
        sys.exit(130)
