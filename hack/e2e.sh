#!/usr/bin/env bash
# The product as its users install it: the image in pods of a real node, by the chart. Started by `make e2e`, which `make test` runs
# last. What the machine lacks for that is said in one line; with CI set that is a failure, without it nothing is run.
# KEEP=1 leaves the node up when something fails, to look at it.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! hack/node/able.sh; then
  [ -z "${CI:-}" ] || exit 1
  echo "e2e: NOT RUN, see the line above; CI=1 makes that a failure" >&2
  exit 0
fi
tools=$(hack/build-tools.sh --with-node) && eval "$tools"
export FENCEDLOCK_TOOLS
work=$(mktemp -d "${TMPDIR:-/tmp}/fencedlock-e2e.XXXXXX")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
passed=0

# shellcheck disable=SC2329  # called by the trap
finish() {
  local status=$?
  trap - EXIT INT TERM
  if [ "$status" != 0 ] && [ -n "${KEEP:-}" ]; then
    echo "e2e: left up: hack/node/in.sh $work kubectl get pods -A; end it with hack/node/down.sh $work" >&2
    exit "$status"
  fi
  hack/node/down.sh "$work"
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

inside() { hack/node/in.sh "$work" "$@"; }
kubectl() { inside kubectl "$@"; }
helm() { inside helm "$@"; }
step() { printf '\n%s\n' "$*"; }
fail() {
  echo "e2e: $1" >&2
  kubectl get pods,fencedlocks -A -o wide >&2 || true
  kubectl logs -n fencedlock -l app.kubernetes.io/name=fencedlock --tail=20 >&2 || true
  exit 1
}
# usage: is WHAT EXPECTED ACTUAL
is() {
  [ "$2" = "$3" ] || fail "$1: it should be $2 and is $3"
  passed=$((passed + 1))
}
# Waits until a jsonpath of an object has a value: reaches NAMESPACE OBJECT JSONPATH VALUE
reaches() {
  kubectl wait -n "$1" "$2" --for="jsonpath=$3=$4" --timeout=60s > /dev/null || fail "$2 in $1 did not reach $3=$4"
  passed=$((passed + 1))
}
lock() { kubectl get fencedlock -n demo report-writer -o "jsonpath=$1"; }
# The process of a container, as the node sees it: pid_of PATTERN
pid_of() { inside pgrep -f "$1"; }
# Starts a worker and waits until the lock's grant is active for it: granted WORKER EPOCH
granted() {
  worker "$1"
  reaches demo fencedlock/report-writer '{.status.grant.holder}' "$1"
  reaches demo fencedlock/report-writer '{.status.grant.state}' Active
  is "the epoch" "$2" "$(lock '{.status.epoch}')"
}
kill_pod() { kubectl delete pod -n demo "$1" --grace-period=0 --force > /dev/null 2>&1; }
# What the operator's ServiceAccount may do, yes or no: may NAMESPACE VERB RESOURCE
may() { kubectl auth can-i --namespace "$1" "$2" "$3" --as system:serviceaccount:fencedlock:fencedlock 2> /dev/null || true; }
# Who leads among the operators.
elected() { kubectl get lease -n fencedlock fencedlock-operator -o 'jsonpath={.spec.holderIdentity}'; }
operators() { kubectl get pods -n fencedlock -l app.kubernetes.io/name=fencedlock -o name; }

step "The image, FROM scratch, and a node"
mkdir "$work/images"
built=$(hack/image.sh "$work/images/fencedlock.tar" "localhost/fencedlock:$version")
echo "$built"
is "the image, when the same program is packed again" "$built" "$(hack/image.sh "$work/again.tar" "localhost/fencedlock:$version" 2> /dev/null)"
"$FENCEDLOCK_TOOLS/ociimage" --name localhost/pause:1 --entrypoint /pause --out "$work/images/pause.tar" "pause=$FENCEDLOCK_TOOLS/pause"
"$FENCEDLOCK_TOOLS/ociimage" --name localhost/elector:1 --entrypoint /elector --out "$work/images/elector.tar" \
  "elector=$FENCEDLOCK_TOOLS/elector"
"$FENCEDLOCK_TOOLS/ociimage" --name localhost/controller:1 --entrypoint /controller --out "$work/images/controller.tar" \
  "controller=$FENCEDLOCK_TOOLS/controller"
# The one on kube-rs comes with the tests, and is not static: its image has what it is linked with.
cargo build --locked --quiet --example controller
mapfile -t linked < <(ldd target/debug/examples/controller | sed -nE 's/.*[ \t]\/([^ ]+) \(.*/\1/p')
mapfile -t linked < <(for library in "${linked[@]}"; do echo "$library=$(realpath "/$library")"; done)
"$FENCEDLOCK_TOOLS/ociimage" --name localhost/kube-rs:1 --entrypoint /controller --out "$work/images/kube-rs.tar" \
  "controller=target/debug/examples/controller" "${linked[@]}"
hack/node/up.sh "$work" "$work/images"

step "helm install, under the restricted Pod Security level, of a chart whose CustomResourceDefinition is older"
kubectl create namespace fencedlock > /dev/null
kubectl label namespace fencedlock pod-security.kubernetes.io/enforce=restricted > /dev/null
# The chart as it could have been before: without a column.
cp -r charts/fencedlock "$work/older"
sed -i '/jsonPath: .status.epoch$/,+2d' "$work/older/files/crds/fencedlock.dev_fencedlocks.yaml"
values=(--namespace fencedlock --set image.repository=localhost/fencedlock --set image.pullPolicy=Never --set replicas=2 --set guard.named=true --wait --timeout 90s)
helm install fencedlock "$work/older" "${values[@]}" > "$work/notes"
grep -q 'kubectl get fencedlocks' "$work/notes" || fail "the notes do not show the next command"
is "operators that are ready" 2 "$(kubectl get deployment -n fencedlock fencedlock -o 'jsonpath={.status.readyReplicas}')"
is "restarts" "0 0" "$(kubectl get pods -n fencedlock -o 'jsonpath={.items[*].status.containerStatuses[0].restartCount}')"

step "helm upgrade brings the new definition"
helm upgrade fencedlock charts/fencedlock "${values[@]}" > /dev/null
is "columns named Epoch" 1 "$(kubectl get crd fencedlocks.fencedlock.dev -o 'jsonpath={.spec.versions[0].additionalPrinterColumns[?(@.name=="Epoch")].name}' | wc -w)"

step "helm test: the ServiceAccount has every right that the operator needs"
helm test fencedlock --namespace fencedlock > /dev/null || fail "helm test failed"
passed=$((passed + 1))

step "The examples, as in the README"
kubectl create namespace demo > /dev/null
kubectl apply -n demo -f examples > "$work/applied" 2>&1
grep -q 'spec.writeBoundaries is empty' "$work/applied" || fail "kubectl apply did not warn: $(cat "$work/applied")"
while read -r name verdict; do reaches demo "fencedlock/$name" '{.status.verdict}' "$verdict"; done << 'V'
cache-rebuild NotRequired
card-charges RiskAccepted
coupon-redlock Unenforced
dunning-mail Unenforced
ledger-import Unproven
report-writer Unenforced
V
kubectl get fencedlocks -n demo

is "log lines that are JSON objects with a level and a message" "" \
  "$(kubectl logs -n fencedlock -l app.kubernetes.io/name=fencedlock | grep -vE '^\{"timestamp":"[^"]*","level":"[A-Z]+","fields":\{"message":".*\}$' || true)"

step "A team lets the operator read Secrets in its own namespace, and there only"
is "right to read a Secret" no "$(may demo get secrets/ledger-db)"
kubectl create rolebinding fencedlock-secrets --clusterrole=fencedlock-secrets --serviceaccount=fencedlock:fencedlock --namespace=demo > /dev/null
is "right to read a Secret by its name" yes "$(may demo get secrets/ledger-db)"
is "right to list Secrets" no "$(may demo list secrets)"
is "right to read a Secret elsewhere" no "$(may fencedlock get secrets/ledger-db)"

step "Who may not read a Secret may not register a boundary that makes the operator read it"
kubectl create rolebinding dev --clusterrole=fencedlock-edit --user=dev --namespace=demo > /dev/null
kubectl get writeboundary -n demo ledger-db -o json | sed 's/"name": "ledger-db"/"name": "mine"/' > "$work/boundary.json"
if kubectl create -n demo -f "$work/boundary.json" --as dev > "$work/refused" 2>&1; then fail "it was registered"; fi
grep -q 'you must be allowed to: get secrets' "$work/refused" || fail "the refusal does not say why: $(cat "$work/refused")"
kubectl create role secrets --verb=get --resource=secrets -n demo > /dev/null
kubectl create rolebinding dev-secrets --role=secrets --user=dev -n demo > /dev/null
kubectl create -n demo -f "$work/boundary.json" --as dev --dry-run=server > /dev/null || fail "who may read the Secret may not register either"
passed=$((passed + 2))

step "Metrics, of a pod, as Prometheus reads them"
first=$(operators | sed -n 1p)
kubectl get --raw "/api/v1/namespaces/fencedlock/pods/${first#pod/}:8080/proxy/metrics" > "$work/metrics"
is "critical locks that are unenforced" 3 "$(sed -n 's/^fencedlock_locks{class="CorrectnessCritical",verdict="Unenforced"} //p' "$work/metrics")"

in_pod() { inside grep -qz "^HOSTNAME=$2\$" "/proc/$1/environ"; }
# shellcheck source=hack/e2e-objects.sh
. hack/e2e-objects.sh

step "A worker in a pod takes the Lease with the token that the kubelet gives it"
kubectl apply -n demo -f examples/clients/rbac.yaml > /dev/null
worker() {
  kubectl apply -n demo -f - > /dev/null << P
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  serviceAccountName: report-writer
  restartPolicy: Never
  containers:
  - name: worker
    image: localhost/elector:1
    imagePullPolicy: Never
    args: [--namespace, demo, --lease, report-writer, --lock, report-writer, --id, $1, --lease-duration, 6s, --renew-deadline, 4s, --retry-period, 1s]
P
}
granted worker-a 1
is "its pod" "$(kubectl get pod -n demo worker-a -o 'jsonpath={.metadata.uid}')" "$(lock '{.status.grant.term.podUid}')"
reaches demo fencedlock/report-writer '{.status.conditions[?(@.type=="OwnerUnique")].reason}' OneProcess

step "It stalls (SIGSTOP of a process in a real pod); another one takes over; it wakes up and stops"
stalled=$(pid_of '^/elector .*--id worker-a')
inside kill -STOP "$stalled"
granted worker-b 2
inside kill -CONT "$stalled"
reaches demo pod/worker-a '{.status.containerStatuses[0].state.terminated.exitCode}' 3

step "One operator is killed, the other one is paused and wakes up again: no epoch is lost or repeated"
mapfile -t pids < <(pid_of '^/fencedlock operator')
is "operator processes" 2 "${#pids[@]}"
# The one that leads is the one that is paused, past its Lease. The kubelet gives each container its pod's name.
leader=$(elected)
if in_pod "${pids[1]}" "${leader%%_*}"; then pids=("${pids[1]}" "${pids[0]}"); fi
in_pod "${pids[0]}" "${leader%%_*}" || fail "no process of the leader $leader"
inside kill -STOP "${pids[0]}"
kill_pod worker-b
granted worker-c 3
[ "$(elected)" != "$leader" ] || fail "worker-c has its epoch, and the paused operator is still the leader"
inside kill -CONT "${pids[0]}"
inside kill -KILL "${pids[1]}"
kill_pod worker-c
granted worker-d 4
kubectl rollout status -n fencedlock deployment/fencedlock --timeout=60s > /dev/null || fail "the killed operator did not come back"

step "Told to stop, the operators give their Lease up; killed, they could not"
kubectl scale -n fencedlock deployment/fencedlock --replicas=0 > /dev/null
kubectl wait -n fencedlock pod -l app.kubernetes.io/name=fencedlock --for=delete --timeout=60s > /dev/null || fail "an operator does not stop"
is "the holder of the operators' Lease" "" "$(elected)"

step "helm uninstall with live objects: they stay, with their definitions"
kubectl scale -n fencedlock deployment/fencedlock --replicas=2 > /dev/null
kubectl rollout status -n fencedlock deployment/fencedlock --timeout=60s > /dev/null || fail "the operators do not come back"
helm uninstall fencedlock --namespace fencedlock --wait --timeout 90s > /dev/null
kubectl wait -n fencedlock pod -l app.kubernetes.io/name=fencedlock --for=delete --timeout=60s > /dev/null || fail "an operator does not stop"
is "operators" "" "$(operators)"
is "locks" 6 "$(kubectl get fencedlocks -n demo -o name | wc -l)"
is "the epoch" 4 "$(lock '{.status.epoch}')"

# Case G06.
step "The namespace with live locks can be deleted, with nobody there to finalize anything"
kubectl delete namespace demo --timeout=60s > /dev/null || fail "the namespace did not go away"
passed=$((passed + 1))

echo
echo "e2e: $passed passed, 0 failed"
