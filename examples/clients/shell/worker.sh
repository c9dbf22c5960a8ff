#!/usr/bin/env bash
# Runs a command while it holds a lock, with the lock's epoch in FENCEDLOCK_EPOCH.
#
#   NAMESPACE=default LEASE=report-writer LOCK=report-writer ./worker.sh ./publish-report.sh
#
# Ends with the command's exit code, or with 3 when the Lease was lost or a newer epoch exists: the command is killed then.
# Needs bash, kubectl, setsid and GNU date. What it lacks is in docs/write-a-client.md: good for a nightly job, not for a service.
set -euo pipefail

: "${NAMESPACE:=default}" "${LOCK:?the name of the FencedLock}" "${LEASE:=$LOCK}"
DURATION=15 # seconds without a renewal after which others take over
DEADLINE=10 # seconds without a successful renewal after which this process gives up
PERIOD=2    # seconds between two attempts
LOST=3
ID="${HOSTNAME:-local}_$(cat /proc/sys/kernel/random/uuid)"

say() { echo "worker.sh: $*" >&2; }
now() { date -u +%Y-%m-%dT%H:%M:%S.%6NZ; }
kc() { kubectl --namespace "$NAMESPACE" --request-timeout=5s "$@"; }

# The Lease in one line: resourceVersion, uid, transitions, acquireTime, holder.
read_lease() {
    local line
    line=$(kc get lease "$LEASE" --ignore-not-found -o jsonpath='{.metadata.resourceVersion}|{.metadata.uid}|{.spec.leaseTransitions}|{.spec.acquireTime}|{.spec.holderIdentity}') || return 1
    IFS='|' read -r VERSION UID_ TRANSITIONS ACQUIRED HOLDER <<<"$line"
}

# Writes the Lease over exactly the version that was read: the API server refuses it when somebody else wrote first.
write_lease() { # holder, transitions, acquireTime
    kc replace -f - >/dev/null 2>&1 <<EOF
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: "$LEASE", resourceVersion: "$VERSION"}
spec: {holderIdentity: "$1", leaseDurationSeconds: $DURATION, leaseTransitions: $2, acquireTime: "$3", renewTime: "$(now)"}
EOF
}

create_lease() {
    kc create -f - >/dev/null 2>&1 <<EOF
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: "$LEASE"}
spec: {holderIdentity: "$ID", leaseDurationSeconds: $DURATION, leaseTransitions: 0, acquireTime: "$1", renewTime: "$1"}
EOF
}

# Waits until the Lease is ours. Another holder's Lease has run out when nothing was renewed for DURATION seconds by this
# machine's own clock; the times in the Lease are somebody else's clock.
acquire() {
    local seen="" since=$SECONDS
    while true; do
        if read_lease; then
            if [[ -z "${VERSION:-}" ]]; then
                create_lease "$(now)" && return
            else
                [[ "$VERSION" == "$seen" ]] || { seen=$VERSION since=$SECONDS; }
                if [[ -z "$HOLDER" || $((SECONDS - since)) -gt $DURATION ]]; then
                    write_lease "$ID" "$((${TRANSITIONS:-0} + 1))" "$(now)" && return
                fi
            fi
        fi
        sleep "$PERIOD"
    done
}

# Renews until that fails for DEADLINE seconds or somebody else holds the Lease.
renew() {
    local last=$SECONDS
    while ((SECONDS - last <= DEADLINE)); do
        if read_lease; then
            [[ "${HOLDER:-}" == "$ID" ]] || return
            if write_lease "$ID" "$TRANSITIONS" "$ACQUIRED"; then last=$SECONDS; fi
        fi
        sleep "$PERIOD"
    done
}

# The epoch of the grant, when it is active, names this process and carries the term that this process wrote.
granted() {
    local line epoch state uid transitions acquired holder
    line=$(kc get fencedlock "$LOCK" -o jsonpath='{.status.grant.epoch}|{.status.grant.state}|{.status.grant.term.leaseUid}|{.status.grant.term.leaseTransitions}|{.status.grant.term.acquireTime}|{.status.grant.holder}') || return 1
    IFS='|' read -r epoch state uid transitions acquired holder <<<"$line"
    [[ "$state" == Active && "$holder" == "$ID" && "$uid" == "$UID_" && "$transitions" == "$TRANSITIONS" && "$acquired" == "$ACQUIRED" ]] || return 1
    echo "$epoch"
}

# Returns once a newer epoch exists.
passed() { # epoch
    local newest
    while true; do
        if newest=$(kc get fencedlock "$LOCK" -o jsonpath='{.status.epoch}') && [[ -n "$newest" ]] && ((newest > $1)); then return; fi
        sleep "$PERIOD"
    done
}

release() {
    if read_lease && [[ "${HOLDER:-}" == "$ID" ]]; then write_lease "" "$TRANSITIONS" "$ACQUIRED" || true; fi
}

acquire
say "leading as $ID"
read_lease && [[ "$HOLDER" == "$ID" ]] || exit "$LOST"
renew &
RENEWER=$!
WATCHER="" COMMAND=""
cleanup() {
    # The command's whole process group first; the Lease is given up only when it is gone.
    [[ -z "$COMMAND" ]] || { kill -KILL -- "-$COMMAND" 2>/dev/null || true; }
    kill "$RENEWER" $WATCHER 2>/dev/null || true
    wait 2>/dev/null || true
    release
}
trap cleanup EXIT
trap 'exit 143' TERM INT

until EPOCH=$(granted); do
    kill -0 "$RENEWER" 2>/dev/null || { say "the Lease was lost while waiting for the grant"; exit "$LOST"; }
    sleep 1
done
say "working under epoch $EPOCH"
passed "$EPOCH" &
WATCHER=$!
# A session of its own, so that the command can be killed with everything that it started.
FENCEDLOCK_EPOCH=$EPOCH setsid "$@" &
COMMAND=$!

code=0
wait -n -p ended "$RENEWER" "$WATCHER" "$COMMAND" || code=$?
case "$ended" in
    "$COMMAND") COMMAND="" && exit "$code" ;;
    "$WATCHER") say "epoch $EPOCH was passed" && exit "$LOST" ;;
    *) say "the Lease was lost" && exit "$LOST" ;;
esac
