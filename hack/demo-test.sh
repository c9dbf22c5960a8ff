#!/usr/bin/env bash
# Tests the demo as a user runs it: it ends by itself with the promised verdicts, and leaves no process behind, also when it
# is interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "demo-test: $1" >&2; cat "$tmp"/out* >&2; exit 1; }

# Processes that name the demo's folder. Dead ones that nobody has reaped yet (state Z) do not count.
left() {
  local pid state
  for pid in $(pgrep -f "$tmp/fencedlock-demo" || true); do
    state=$(ps -o stat= -p "$pid" || true)
    case $state in '' | Z*) ;; *) ps -o pid,args -p "$pid" ;; esac
  done
}

TMPDIR=$tmp hack/demo.sh > "$tmp/out1" 2>&1 || fail "the demo failed"
for row in 'cache-rebuild +EfficiencyOnly +NotRequired' 'card-charges +CorrectnessCritical +RiskAccepted' \
  'report-writer +CorrectnessCritical +Unenforced +1 +0/0 +worker-a' 'report-writer +CorrectnessCritical +Unenforced +2 +0/0 +worker-b' \
  'coupon-redlock +Unenforced +TokenNotOrdered' 'dunning-mail +Unenforced +CannotEnforce' 'ledger-import +Unproven +BackendNotImplemented' \
  'report-writer +Unenforced +NoBoundaryRegistered' '"event":"superseded"'; do
  grep -Eq "$row" "$tmp/out1" || fail "the demo did not show: $row"
done
[ -z "$(left)" ] || fail "the demo left behind: $(left)"

# Interrupted in the middle, as Ctrl-C does: the signal goes to the whole process group.
mkfifo "$tmp/lines"
TMPDIR=$tmp setsid hack/demo.sh > "$tmp/lines" 2>&1 &
demo=$!
while read -r line; do
  echo "$line" >> "$tmp/out2"
  case $line in *"takes the Lease"*) kill -INT -- "-$demo" ;; esac
done < "$tmp/lines"
wait "$demo" && fail "an interrupted demo says that it went well"
[ -z "$(left)" ] || fail "an interrupted demo left behind: $(left)"
echo "demo-test: 2 passed, 0 failed"
