#!/usr/bin/env bash
# Tests the demo as a user runs it: it ends by itself with the promised verdicts, and leaves no process behind, also when it
# is interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."

tmp=$(mktemp -d)
chmod 755 "$tmp"
trap 'rm -rf "$tmp"' EXIT
fail() { echo "demo-test: $1" >&2; cat "$tmp"/out* >&2; exit 1; }

# Processes that name the demo's folder, or are in the given process group. Dead ones that nobody has reaped yet (state Z) do not
# count.
left() {
  local pid state
  for pid in $(pgrep -f "$tmp/fencedlock-demo" || true) $([ $# -eq 0 ] || pgrep -g "$1" || true); do
    state=$(ps -o stat= -p "$pid" || true)
    case $state in '' | Z*) ;; *) ps -o pid,args -p "$pid" ;; esac
  done
}

TMPDIR=$tmp hack/demo.sh > "$tmp/out1" 2>&1 || fail "the demo failed"
for row in 'cache-rebuild +EfficiencyOnly +NotRequired' 'card-charges +CorrectnessCritical +RiskAccepted' \
  'ledger-import +CorrectnessCritical +Unproven +0/1' 'ledger-db +ledger-import +Postgres +Enforce +Proven' \
  'ledger-import +CorrectnessCritical +Enforced +1 +1/1 +[0-9]+s +worker-a' 'statement 7 \| worker-b' \
  'worker-a: ERROR: +fencedlock: demo/ledger-import=1@worker-a does not own the lock' 'WritesRefused +ledger-db +1 write was refused' \
  'coupon-redlock +Unenforced +TokenNotOrdered' 'dunning-mail +Unenforced +CannotEnforce' 'ledger-import +Enforced +AllBoundariesProven' \
  'report-writer +Unenforced +NoBoundaryRegistered' 'web-controller +CorrectnessCritical +Enforced +1 +1/1' 'web-objects +web-controller +Kubernetes +Enforce +Proven' \
  'web-0: .*fencedlock: epoch 2 of write boundary web-objects belongs to web-1_' '"owner":"web-1"' \
  'epoch 2 of write boundary web-objects belongs to web-1_.*is not by it \(' ; do
  grep -Eq "$row" "$tmp/out1" || fail "the demo did not show: $row"
done
! grep -q 'statement 7 | worker-a' "$tmp/out1" || fail "the obsolete owner's write took effect"
[ -z "$(left)" ] || fail "the demo left behind: $(left)"

# Runs the demo until it prints a line, then does something, then interrupts it as Ctrl-C does: the signal goes to the whole
# process group. usage: interrupted NUMBER PATTERN COMMAND…
interrupted() {
  local number=$1 pattern=$2 demo line
  shift 2
  mkfifo "$tmp/lines$number"
  # With job control the demo has a process group of its own and does not ignore SIGINT, as in a terminal.
  set -m
  TMPDIR=$tmp hack/demo.sh > "$tmp/lines$number" 2>&1 &
  demo=$!
  set +m
  while read -r line; do
    echo "$line" >> "$tmp/out$number"
    if [[ $line == *$pattern* ]]; then
      "$@" "$line" || fail "$* failed"
      kill -INT -- "-$demo"
    fi
  done < "$tmp/lines$number"
  wait "$demo" && fail "an interrupted demo says that it went well"
  [ -z "$(left "$demo")" ] || fail "an interrupted demo left behind: $(left "$demo")"
}

# The line that KEEP=1 ends with names a kubeconfig that works.
kept() {
  # Not grep -q: it ends at its match, and kubectl would be told so by a signal.
  env "${1#*export }" .cache/tools/bin/kubectl get fencedlocks | grep ledger-import > /dev/null
}

interrupted 2 'takes the lock' true
KEEP=1 interrupted 3 'export KUBECONFIG=' kept
echo "demo-test: 3 passed, 0 failed"
