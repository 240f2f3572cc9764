#!/usr/bin/env bash
# Check AutoDraft on a CUDA machine, in at most 8 minutes and without a network: losslessness in
# float32, latency tables of models of real size with random weights, rounds over loopback.
# The machine's Python needs torch, transformers, numpy and safetensors. What else is lacking is
# named, with the command that fetches it elsewhere; it is installed into a folder of its own from
#   --wheels DIR      folder of wheels
# and the machine's Python stays as it is.
#   --python PYTHON   interpreter (default: $PYTHON, else this repository's .venv, else python3)
# The other options are those of scripts/gpu_checks/command.py: --help shows them.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
checks=$root/scripts/gpu_checks

fail() {
  echo "error: $1" >&2
  exit 2
}

python=${PYTHON:-}
wheels=
options=()
while (($#)); do
  case $1 in
    --wheels | --python)
      (($# > 1)) || fail "$1 needs a value."
      if [[ $1 == --wheels ]]; then wheels=$2; else python=$2; fi
      shift
      ;;
    --wheels=*) wheels=${1#*=} ;;
    --python=*) python=${1#*=} ;;
    *) options+=("$1") ;;
  esac
  shift
done
if [[ -z $python ]]; then
  python=python3
  [[ ! -x $root/.venv/bin/python ]] || python=$root/.venv/bin/python
fi
command -v "$python" >/dev/null || fail "There is no $python. Name a Python with --python."
[[ -z $wheels || -d $wheels ]] || fail "--wheels $wheels: there is no such folder."

lacking() {
  "$python" "$checks/wheels.py"
}

site=
# shellcheck disable=SC2329 # the trap calls it
remove_site() {
  [[ -z $site ]] || rm -rf -- "$site"
}
trap remove_site EXIT

missing=$(lacking) || exit 2
if [[ -n $missing ]]; then
  if [[ -z $wheels ]]; then
    "$python" "$checks/wheels.py" explain >&2
    exit 2
  fi
  site=$(mktemp -d "${TMPDIR:-/tmp}/autodraft-wheels.XXXXXX")
  # Ranges have no spaces and no wildcards: each line is one word.
  # shellcheck disable=SC2086
  "$python" -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir \
    --no-index --no-deps --no-compile --find-links "$wheels" --target "$site" $missing >&2 || {
    "$python" "$checks/wheels.py" explain >&2
    fail "pip could not install all of that from $wheels."
  }
  export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
  missing=$(lacking 2>/dev/null) || exit 2
  [[ -z $missing ]] || fail "From $wheels came no fitting" $missing
fi

export PYTHONPATH="$root/scripts:$root${PYTHONPATH:+:$PYTHONPATH}"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
"$python" -m gpu_checks ${options[@]+"${options[@]}"}
