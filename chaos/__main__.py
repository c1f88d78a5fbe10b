"""``python -m chaos``: see :mod:`chaos.command`. Workers import this module too, so it imports nothing for them."""

if __name__ == "__main__":
    import sys

    from chaos.command import main

    sys.exit(main())
