#!/usr/bin/env bash
# From a fresh clone to a table, a CSV file and a plot: installs, prepares the embedded models,
# starts a target server on a free port, runs configs/quickstart.xml against it, stops the server.
# Each call is a run of its own, unless --resume goes on with one that was ended.
# Further options go to the experiment, for example: --set models.DTYPE=float32
# No GPU, no model hub. PYTHON=… chooses the interpreter that .venv is made from.
set -euo pipefail

readonly ready_limit_s=120 stop_limit_s=10
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup_env.sh"

export PYTHON=$root/.venv/bin/python
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
export HF_HUB_OFFLINE=1

"$PYTHON" -m autodraft doctor --prepare

log=$(mktemp "${TMPDIR:-/tmp}/autodraft-target.XXXXXX")
target=

# shellcheck disable=SC2329 # the trap calls it
stop_target() {
  if [[ -n $target ]]; then
    kill -TERM "$target" 2>/dev/null || true
    for ((waited = 0; waited < stop_limit_s * 10; waited++)); do
      kill -0 "$target" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL "$target" 2>/dev/null || true
    wait "$target" 2>/dev/null || true
  fi
  rm -f -- "$log"
}
trap stop_target EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

fail() {
  echo "error: $1 Its last lines:" >&2
  tail -n 20 -- "$log" >&2
  exit 1
}

# Port 0: the system chooses a free one, and the server says which.
"$root/run_target.sh" --host 127.0.0.1 --port 0 --server-name autodraft --lazy-load >"$log" 2>&1 &
target=$!
port=
for ((waited = 0; waited < ready_limit_s * 5; waited++)); do
  port=$(sed -n 's/.* listening on 127\.0\.0\.1:\([0-9]*\).*/\1/p' "$log" | head -n 1)
  [[ -z $port ]] || break
  kill -0 "$target" 2>/dev/null || fail "The target server ended before it was ready."
  sleep 0.2
done
[[ -n $port ]] || fail "The target server was not ready after $ready_limit_s s."

# A server of its own for each call: without --resume, so is the run.
fresh=(--fresh)
for option in "$@"; do
  [[ $option != --resume* ]] || fresh=()
done
code=0
bash "$root/evaluation/run_main_experiment_overall_performance.sh" \
  --config-xml "$root/configs/quickstart.xml" \
  --set runtime.TARGET_HOST=127.0.0.1 --set "runtime.TARGET_PORT=$port" \
  --set runtime.SERVER_NAME=autodraft ${fresh[@]+"${fresh[@]}"} "$@" || code=$?
if ((code != 0)); then
  echo "The experiment ended with exit code $code. The target server's last lines:" >&2
  tail -n 20 -- "$log" >&2
fi
exit "$code"
