"""Start the harness: ``python -m evaluation run CONFIG``."""

import importlib.util
import sys
from typing import Final

_EXTRA: Final = ("matplotlib", "rich")


def main() -> int:
    """Check the extra packages of the harness, then hand over to its command line."""
    missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"error: The harness needs {' and '.join(missing)}, which this Python does not have. "
            'Install the extra from the repository: pip install -e ".[harness]".\n'
        )
        return 1
    from evaluation.cli import main as run_cli

    return run_cli()


if __name__ == "__main__":
    sys.exit(main())
