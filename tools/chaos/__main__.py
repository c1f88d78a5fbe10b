"""``python -m tools.chaos``: see :mod:`tools.chaos.command`.

Workers import this module too, so it imports nothing for them.
"""

if __name__ == "__main__":
    import sys

    from tools.chaos.command import main

    sys.exit(main())
