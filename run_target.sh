#!/usr/bin/env bash
# Start a target server and stay in the foreground: ./run_target.sh --help lists the options.
# PYTHON=… chooses the interpreter (default: .venv/bin/python of the repository, else python3).
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
if [[ -z ${PYTHON:-} ]]; then
  PYTHON=python3
  [[ ! -x $root/.venv/bin/python ]] || PYTHON=$root/.venv/bin/python
fi

export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "$PYTHON" -m autodraft target "$@"
