#!/usr/bin/env bash
# Run one experiment: every method of a configuration on its benchmarks.
# Works from any folder; relative paths are relative to the folder it is called from.
set -euo pipefail

usage() {
  cat >&2 <<'USAGE'
usage: run_main_experiment_overall_performance.sh (--config-xml FILE | --config-yaml FILE)
         [--limit N] [--set block.KEY=value]... [--output DIR] [--resume [RUN_ID] | --fresh]
         [--dry-run [--assume-tokens-per-s X]]

Needs a running target server (run_target.sh) unless --dry-run is given, or nothing is left to do.
A run of the same configuration that was ended goes on where it stood: --resume insists on that,
--fresh begins a new one.
PYTHON=… chooses the interpreter (default: .venv/bin/python of the repository, else python3).
USAGE
}

fail() {
  echo "error: $1" >&2
  usage
  exit 2
}

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
config=
rest=()
while (($#)); do
  case $1 in
    -h | --help)
      usage 2>&1
      exit 0
      ;;
    --config-xml | --config-yaml)
      (($# >= 2)) || fail "$1 needs a file."
      [[ -z $config ]] || fail "Give one configuration, not two ($config and $2)."
      [[ -f $2 ]] || fail "There is no file $2 (from $PWD)."
      config=$2
      shift 2
      ;;
    --config-xml=* | --config-yaml=*)
      option=$1
      shift
      set -- "${option%%=*}" "${option#*=}" "$@"
      ;;
    *)
      rest+=("$1")
      shift
      ;;
  esac
done
[[ -n $config ]] || fail "A configuration is missing."

if [[ -z ${PYTHON:-} ]]; then
  PYTHON=python3
  [[ ! -x $root/.venv/bin/python ]] || PYTHON=$root/.venv/bin/python
fi

# Like "python -m evaluation", but the repository comes first in the search path and the caller's
# folder is not in it: a folder named evaluation/ or datasets/ over there must not be taken.
start='import runpy, sys
sys.path[:] = [sys.argv.pop(1), *filter(None, sys.path)]
runpy.run_module("evaluation", run_name="__main__", alter_sys=True)'
exec "$PYTHON" -c "$start" "$root" run "$config" ${rest[@]+"${rest[@]}"}
