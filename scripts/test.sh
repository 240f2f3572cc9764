#!/usr/bin/env bash
# Everything that must hold before a change lands: style, types, tests. Installs what it needs.
# No GPU, no model hub. Further options go to pytest, for example: tests/unit -k tokenizer
# With CI=true the tests marked heavy run too.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/lint.sh"
cd -- "$root"

export HF_HUB_OFFLINE=1
selection=()
if [[ ${CI:-} != true ]]; then
  selection=(-m "not heavy")
fi
exec .venv/bin/python -m pytest ${selection[@]+"${selection[@]}"} "$@"
