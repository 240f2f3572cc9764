"""``python -m autodraft``: see ``autodraft.cli``."""

from autodraft.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
