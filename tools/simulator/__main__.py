"""``python -m tools.simulator``."""

from tools.simulator.command import main

if __name__ == "__main__":
    raise SystemExit(main())
