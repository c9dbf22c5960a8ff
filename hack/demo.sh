#!/usr/bin/env bash
# The demo: a real control plane, the operator under the chart's ServiceAccount, the examples, and two client-go workers that
# take and lose a Lease. Prints `kubectl get fencedlocks` at each step. Ends by itself; KEEP=1 leaves it up until Ctrl-C.
# Started by `make demo`, which has built everything.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$(hack/build-tools.sh) && eval "$tools"
export KUBEBUILDER_ASSETS
binary=${CARGO_TARGET_DIR:-target}/debug/fencedlock
work=$(mktemp -d "${TMPDIR:-/tmp}/fencedlock-demo.XXXXXX")
pids=()
launcher=

# shellcheck disable=SC2329  # called by the trap
finish() {
  local status=$?
  trap - EXIT INT TERM
  for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  # The launcher ends with its standard input, and the control plane with the launcher.
  exec 3>&- || true
  [ -z "$launcher" ] || wait "$launcher" 2>/dev/null || true
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

step() { printf '\n\033[1m%s\033[0m\n' "$*"; }
note() { printf '  %s\n' "$*"; }
kubectl() { "$FENCEDLOCK_TOOLS/kubectl" "$@"; }
locks() { printf '\n$ kubectl get fencedlocks\n'; kubectl get fencedlocks; }

# Starts a program of ours in the background, without our end of the launcher's input; it dies with this script.
start() {
  local log=$1
  shift
  setpriv --pdeathsig KILL -- "$@" > "$log" 2>&1 3>&- &
  pids+=("$!")
}

# Waits for a lock: `await LOCK JSONPATH VALUE`.
await() {
  kubectl wait "fencedlock/$1" --for="jsonpath=$2=$3" --timeout=30s > /dev/null || {
    echo "demo: $1 did not reach $2=$3; the operator's log ends with:" >&2
    tail -n 20 "$work/operator.log" >&2
    exit 1
  }
}

worker() {
  start "$work/$1.log" "$FENCEDLOCK_TOOLS/elector" --kubeconfig "$work/admin" --namespace demo --lease report-writer --lock report-writer \
    --id "$1" --lease-duration 3s --renew-deadline 2s --retry-period 500ms --release-on-cancel
}

step "A control plane: etcd and kube-apiserver, no cluster and no Docker needed"
mkfifo "$work/input" "$work/ready"
"$FENCEDLOCK_TOOLS/controlplane" --dir "$work/plane" < "$work/input" > "$work/ready" 2> "$work/plane.log" &
launcher=$!
exec 3> "$work/input"
read -r ready < "$work/ready" || { echo "demo: the control plane did not start:" >&2; cat "$work/plane.log" >&2; exit 1; }
note "ready after $(sed -E 's/.*"readyMillis":([0-9]+).*/\1/' <<< "$ready") ms"
cp "$work/plane/kubeconfig" "$work/admin"
export KUBECONFIG=$work/admin

step "The CustomResourceDefinitions, and the chart's ServiceAccount and roles"
kubectl apply -f crds > /dev/null
kubectl wait --for=condition=Established --timeout=30s -f crds > /dev/null
kubectl create namespace fencedlock > /dev/null
kubectl create namespace demo > /dev/null
kubectl config set-context --current --namespace=demo > /dev/null
# The operator runs beside the control plane, not in a pod, so that no Deployment is needed.
"$FENCEDLOCK_TOOLS/helm" template fencedlock charts/fencedlock --namespace fencedlock \
  --show-only templates/serviceaccount.yaml --show-only templates/rbac.yaml | kubectl apply -f - > /dev/null

step "The operator, with that ServiceAccount's token and no other right"
cp "$work/admin" "$work/operator"
token=$(kubectl create token fencedlock --namespace fencedlock)
kubectl config --kubeconfig "$work/operator" set-credentials operator --token="$token" > /dev/null
kubectl config --kubeconfig "$work/operator" set-context --current --user=operator > /dev/null
start "$work/operator.log" env KUBECONFIG="$work/operator" "$binary" operator

step "The examples: six locks, and what receives their writes"
kubectl apply -f examples | sed 's/^/  /'
for lock in cache-rebuild card-charges coupon-redlock dunning-mail ledger-import report-writer; do await "$lock" '{.status.conditions[?(@.type=="Ready")].status}' True; done
locks
note ""
note "Nobody holds a lock yet, and the operator already says what would happen if two did:"
note "report-writer is correctness-critical and nothing that receives its writes can refuse an obsolete owner."
note "card-charges cannot be fenced either, and a team answers for that until a date."

step "worker-a, an unmodified client-go elector, takes the Lease report-writer"
worker worker-a
first=${pids[-1]}
await report-writer '{.status.grant.state}' Active
locks
note ""
note "The term has an epoch, which worker-a carries with its writes. No receiver checks it: the verdict stays Unenforced."

step "worker-a stalls (SIGSTOP). worker-b waits for the Lease to run out and takes over"
kill -STOP "$first"
worker worker-b
second=${pids[-1]}
await report-writer '{.status.grant.holder}' worker-b
await report-writer '{.status.grant.state}' Active
locks

step "worker-a wakes up (SIGCONT). It still believed that it may write"
kill -CONT "$first"
wait "$first" || true
grep -h superseded "$work/worker-a.log" | sed 's/^/  worker-a: /'
note "It watched the lock and stopped. A worker that does not is why the receiver has to refuse it."

step "worker-b is asked to stop and releases the Lease"
kill -TERM "$second"
await report-writer '{.status.conditions[?(@.type=="EpochActive")].reason}' Released
locks
note ""
note "Nobody has a grant; the epoch stays as the floor for the next term."

step "Which critical lock has no registered enforcing boundary, and why"
printf '\n$ kubectl get fencedlocks -o custom-columns=NAME:.metadata.name,VERDICT:.status.verdict,REASON:.status.reason\n'
kubectl get fencedlocks -o custom-columns=NAME:.metadata.name,VERDICT:.status.verdict,REASON:.status.reason
printf '\n$ fencedlock status report-writer\n'
"$binary" status report-writer

if [ -n "${KEEP:-}" ]; then
  step "Left up until you press Ctrl-C. In another terminal:"
  note "export KUBECONFIG=$work/admin"
  note "kubectl is in $FENCEDLOCK_TOOLS; the operator's log is $work/operator.log"
  wait "$launcher" || true
  echo "demo: the control plane ended" >&2
  exit 1
fi
step "Done: everything that was started is stopped."
