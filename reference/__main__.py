"""``python -m reference [--check]``."""

from __future__ import annotations

import sys

from reference.pages import main

sys.exit(main(sys.argv[1:]))
