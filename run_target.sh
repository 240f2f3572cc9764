#!/usr/bin/env bash
# Start a target server and stay in the foreground: ./run_target.sh --help lists the options.
# PYTHON=… chooses the interpreter (default: .venv/bin/python of the repository, else python3).
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
if [[ -z ${PYTHON:-} ]]; then
  PYTHON=python3
  [[ ! -x $root/.venv/bin/python ]] || PYTHON=$root/.venv/bin/python
fi

# Draft and target often share a machine and take turns: idle threads must not spin.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-PASSIVE}"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "$PYTHON" -m autodraft target "$@"
