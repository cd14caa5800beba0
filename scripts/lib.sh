# Shared by the scripts: where things are, steps with progress, and a clear word when one fails. Sourced, never run.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=$ROOT/.venv
LOGS=$ROOT/.cache/setup

# die TEXT...: end with an error on standard error.
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# now_ms: milliseconds of the clock.
now_ms() {
  date +%s%3N
}

# seconds_since MS: time since MS, like "12.3 s".
seconds_since() {
  local spent=$(($(now_ms) - $1))
  printf '%d.%d s' $((spent / 1000)) $((spent % 1000 / 100))
}

# step NAME CURE COMMAND...: run a command with its output in a log file, and say how long it took. Every 10 s the last
# line of the log shows that it still moves. On failure: the step, the log's last lines, and what to do.
step() {
  local name=$1 cure=$2 log began status=0
  shift 2
  mkdir -p "$LOGS"
  log=$LOGS/$(tr -c 'a-z0-9\n' '-' <<<"${name,,}").log
  began=$(now_ms)
  printf '==> %s ...\n' "$name"
  "$@" >"$log" 2>&1 </dev/null &
  local pid=$! waited=0
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    waited=$((waited + 1))
    if ((waited % 50 == 0)); then
      printf '    %3d s: %s\n' $((waited / 5)) "$(tail -n 1 "$log" | tr -cd '[:print:]' | cut -c 1-100)"
    fi
  done
  wait "$pid" || status=$?
  if ((status != 0)); then
    {
      printf '    failed after %s\n\nerror: step "%s" failed (exit %d). Its last lines:\n' \
        "$(seconds_since "$began")" "$name" "$status"
      tail -n 15 "$log" | sed 's/^/    /'
      printf 'What to do: %s\nWhole log: %s\n' "$cure" "$log"
    } >&2
    exit 1
  fi
  printf '    done in %s\n' "$(seconds_since "$began")"
}
