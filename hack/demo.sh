#!/usr/bin/env bash
# The demo: a real control plane and a real PostgreSQL server, the operator under the chart's ServiceAccount, the examples, and two
# workers that take and lose a lock; then two controllers, and objects that the API server guards. Prints `kubectl get fencedlocks` at each step. Ends by itself; KEEP=1 leaves it up until Ctrl-C.
# Started by `make demo`, which has built everything.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$(hack/build-tools.sh) && eval "$tools"
export KUBEBUILDER_ASSETS
binary=${CARGO_TARGET_DIR:-target}/debug/fencedlock
work=$(mktemp -d "${TMPDIR:-/tmp}/fencedlock-demo.XXXXXX")
# The database server runs as a user of its own, who has to reach its files.
data=$(mktemp -d "${TMPDIR:-/tmp}/fencedlock-demo.XXXXXX")
chmod 755 "$data"
pids=()
launcher='' database=''

# shellcheck disable=SC2329  # called by the trap
finish() {
  local status=$?
  trap - EXIT INT TERM
  for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  # The launcher ends with its standard input, and the control plane with the launcher.
  exec 3>&- || true
  [ -z "$launcher" ] || wait "$launcher" 2>/dev/null || true
  exec 4>&- || true
  [ -z "$database" ] || wait "$database" 2>/dev/null || true
  rm -rf "$work" "$data"
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
  setpriv --pdeathsig KILL -- "$@" > "$log" 2>&1 3>&- 4>&- < /dev/null &
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

sql() { PGOPTIONS='--client-min-messages=warning' psql --no-psqlrc --quiet --tuples-only --no-align "postgresql://postgres:postgres@127.0.0.1:$port/ledger" "$@"; }
bookings() { printf '\n$ psql -c "select statement, booked_by from bookings"\n'; sql --no-align --field-separator=' | ' -P tuples_only=off -P footer=off -c 'select statement, booked_by from bookings'; }

# A worker: it holds the lock while its command runs. The command says that it works, waits for its file, and books with psql, which
# knows nothing of fencing.
worker() {
  # shellcheck disable=SC2016  # expanded by the worker's shell
  start "$work/$1.log" env WORKER="$1" GO="$work/$1.go" BOOK="postgresql://ledger_app:ledger_app@127.0.0.1:$port/ledger" \
    "$binary" run --lock ledger-import --identity "$1" --lease-duration 3s --renew-deadline 2s --retry-period 500ms -- sh -c '
      echo "working under epoch $FENCEDLOCK_EPOCH ($$)"
      while ! [ -e "$GO" ]; do sleep 0.1; done
      psql --no-psqlrc --quiet "$BOOK" -c "insert into bookings values (\$\$statement 7\$\$, \$\$$WORKER\$\$)
        on conflict (statement) do update set booked_by = excluded.booked_by"'
}

# Waits for a line in a worker's log.
until_logged() {
  local began=$SECONDS
  until grep -q "$2" "$work/$1.log" 2> /dev/null; do
    [ $((SECONDS - began)) -lt 40 ] || { echo "demo: $1 did not say $2:" >&2; cat "$work/$1.log" >&2; exit 1; }
    sleep 0.1
  done
}

# shellcheck source=hack/demo-objects.sh
. hack/demo-objects.sh

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
bound fencedlock fencedlock operator
start "$work/operator.log" env KUBECONFIG="$work/operator" "$binary" operator

step "The examples: six locks, and what receives their writes"
kubectl apply -f examples | sed 's/^/  /'
for lock in cache-rebuild card-charges coupon-redlock dunning-mail ledger-import report-writer; do await "$lock" '{.status.conditions[?(@.type=="Ready")].status}' True; done
locks
note ""
note "Nobody holds a lock yet, and the operator already says what would happen if two did:"
note "report-writer is correctness-critical and nothing that receives its writes can refuse an obsolete owner."
note "card-charges cannot be fenced either, and a team answers for that until a date."

step "A PostgreSQL server, and the URL of the operator's role in a Secret that the team lets the operator read"
mkfifo "$work/pg-input" "$work/pg-ready"
hack/postgres/server.sh "$data" < "$work/pg-input" > "$work/pg-ready" 2> "$work/pg.log" 3>&- &
database=$!
exec 4> "$work/pg-input"
read -r _ port < "$work/pg-ready" || { echo "demo: PostgreSQL did not start:" >&2; cat "$work/pg.log" >&2; exit 1; }
PGPASSWORD=postgres psql --no-psqlrc --quiet -h 127.0.0.1 -p "$port" -U postgres -c 'create database ledger'
sql << 'SQL'
create role ledger_owner; create role ledger_app login password 'ledger_app'; create role fencedlock login password 'fencedlock';
create table bookings (statement text primary key, booked_by text);
alter table bookings owner to ledger_owner; grant select, insert, update, delete on bookings to ledger_app;
grant create on database ledger to fencedlock;
grant ledger_owner, ledger_app, pg_read_all_stats, pg_signal_backend to fencedlock;
SQL
kubectl create secret generic ledger-db --from-literal=url="postgresql://fencedlock:fencedlock@127.0.0.1:$port/ledger" > /dev/null
kubectl create role fencedlock-secrets --verb=get --resource=secrets --resource-name=ledger-db > /dev/null
kubectl create rolebinding fencedlock-secrets --role=fencedlock-secrets --serviceaccount=fencedlock:fencedlock > /dev/null
kubectl patch writeboundary ledger-db --type=merge --patch '{"spec":{"proof":{"interval":"10s"}}}' > /dev/null
kubectl wait writeboundary/ledger-db --for='jsonpath={.status.conditions[?(@.type=="GuardInstalled")].status}=True' --timeout=60s > /dev/null
locks
note ""
note "ledger-import: its table has a guard now, which only observes. It counts who would be refused, and refuses nobody."

step "From Observe to Enforce: one edit. The operator proves the guard before it says Enforced"
kubectl patch writeboundary ledger-db --type=merge --patch '{"spec":{"mode":"Enforce"}}' > /dev/null
await ledger-import '{.status.verdict}' Enforced
printf '\n$ kubectl get writeboundary ledger-db -o wide\n'
kubectl get writeboundary ledger-db -o wide
note ""
note "It tried stale writes, no claims, wrong holders and races against a canary behind the same guard, and found no role that"
note "can go around it: $(kubectl get writeboundary ledger-db -o jsonpath='{.status.proof.probes[?(@.outcome=="Passed")].name}')"

step "worker-a takes the lock: fencedlock run --lock ledger-import -- ..."
worker worker-a
first=${pids[-1]}
until_logged worker-a 'working under epoch 1'
note "worker-a: $(grep working "$work/worker-a.log" | cut -d' ' -f1-4)"
locks

step "worker-a stalls before its write (SIGSTOP, all of it). worker-b waits for the Lease to run out, takes over, and books"
group=$(sed -nE 's/^working under epoch 1 \(([0-9]+)\)$/\1/p' "$work/worker-a.log")
kill -STOP "$first" "-$group"
touch "$work/worker-b.go"
worker worker-b
second=${pids[-1]}
until_logged worker-b 'working under epoch 2'
wait "$second" || { cat "$work/worker-b.log" >&2; exit 1; }
note "worker-b: $(grep working "$work/worker-b.log" | cut -d' ' -f1-4), and ended well"
bookings

step "worker-a wakes up (SIGCONT). It still believes that it may write"
touch "$work/worker-a.go"
kill -CONT "-$group"
until_logged worker-a ERROR
kill -CONT "$first"
wait "$first" || true
grep -hE 'ERROR|HINT' "$work/worker-a.log" | sed 's/^/  worker-a: /'
bookings
note ""
note "PostgreSQL refused it. Nothing in worker-a knew better, and nothing had to."

step "The refusal is seen: an Event, at the latest one proof interval later, and a metric"
began=$SECONDS
until kubectl get events --field-selector reason=WritesRefused --no-headers 2> /dev/null | grep -q refused; do
  [ $((SECONDS - began)) -lt 60 ] || { echo "demo: no Event tells of the refused write" >&2; exit 1; }
  sleep 0.2
done
printf '\n$ kubectl get events --field-selector reason=WritesRefused\n'
kubectl get events --field-selector reason=WritesRefused -o custom-columns=TYPE:.type,REASON:.reason,OBJECT:.involvedObject.name,MESSAGE:.message

objects

step "Which critical lock has no registered enforcing boundary, and why"
printf '\n$ kubectl get fencedlocks -o custom-columns=NAME:.metadata.name,VERDICT:.status.verdict,REASON:.status.reason\n'
kubectl get fencedlocks -o custom-columns=NAME:.metadata.name,VERDICT:.status.verdict,REASON:.status.reason
printf '\n$ fencedlock status ledger-import\n'
"$binary" status ledger-import

if [ -n "${KEEP:-}" ]; then
  step "Left up until you press Ctrl-C. In another terminal:"
  note "export KUBECONFIG=$work/admin"
  note "kubectl is in $FENCEDLOCK_TOOLS; the operator's log is $work/operator.log"
  wait "$launcher" || true
  echo "demo: the control plane ended" >&2
  exit 1
fi
step "Done: everything that was started is stopped."
