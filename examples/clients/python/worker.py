"""A worker that uses its epoch: leader election with the `kubernetes` package, and the grant of a FencedLock.

    pip install kubernetes
    NAMESPACE=default LOCK=report-writer LEASE=report-writer python worker.py

In a pod, set POD_UID too, by the downward API (fieldPath: metadata.uid).

It ends with 3 when the Lease was lost or a newer epoch exists. A supervisor (a Deployment, systemd) starts it again: a new
process, with a new identity, is the only clean way back.
"""

import datetime
import os
import signal
import sys
import threading
import time
import uuid

from kubernetes import client, config
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

NAMESPACE = os.environ.get("NAMESPACE", "default")
LOCK = os.environ["LOCK"]
LEASE = os.environ.get("LEASE", LOCK)
# "<pod>_<random>": the operator finds the pod, and no two processes ever share an identity. In a pod, HOSTNAME is its name.
ID = f"{os.environ.get('HOSTNAME', 'local')}_{uuid.uuid4()}"

# The uid of the pod that this process runs in, or None when nobody says it.
POD_UID = os.environ.get("POD_UID") or None

LOST = 3


def stop(why, code=LOST):
    """Ends the process at once, writes under way included. sys.exit() in a thread would end only that thread."""
    print(f"stopped: {why}", flush=True)
    os._exit(code)


def instant(value):
    """The time in a Lease (a datetime) or in a FencedLock (a text), as a value that can be compared."""
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
    return value


def own_term():
    """What this process wrote when it acquired the Lease, or None when the Lease is somebody else's."""
    lease = client.CoordinationV1Api().read_namespaced_lease(LEASE, NAMESPACE)
    if lease.spec.holder_identity != ID:
        return None
    # This library never writes leaseTransitions: absent here is absent in the grant.
    return lease.metadata.uid, instant(lease.spec.acquire_time), lease.spec.lease_transitions


def status():
    lock = client.CustomObjectsApi().get_namespaced_custom_object("fencedlock.dev", "v1alpha1", NAMESPACE, "fencedlocks", LOCK)
    return lock.get("status", {})


def granted(grant, own):
    """Whether a grant is active, names this process, and is for this very acquisition."""
    term = grant.get("term", {})
    carried = term.get("leaseUid"), instant(term.get("acquireTime")), term.get("leaseTransitions")
    # A pod of the same name that came after the granted one: it has the same identity, if that is fixed, and the same Lease.
    is_successor = POD_UID and term.get("podUid", POD_UID) != POD_UID
    return grant.get("state") == "Active" and grant.get("holder") == ID and carried == own and not is_successor


def wait_for_epoch():
    """The epoch of this acquisition. Called once; the number then travels with the work."""
    own = None
    while True:
        try:
            own = own or own_term()
            grant = status().get("grant", {})
            if own and granted(grant, own):
                return grant["epoch"]
        except Exception as error:  # An API server that is away is waited for; losing the Lease ends the process.
            print(f"waiting for the grant: {error}", file=sys.stderr, flush=True)
        time.sleep(1)


def stop_when_passed(epoch):
    """Ends the process as soon as a newer epoch exists, as if the Lease were lost."""
    while True:
        try:
            newest = status().get("epoch", 0)
            if newest > epoch:
                stop(f"epoch {epoch} was passed by {newest}")
        except Exception as error:
            print(f"watching the epoch: {error}", file=sys.stderr, flush=True)
        time.sleep(1)


def lead():
    print(f"leading as {ID}", flush=True)
    epoch = wait_for_epoch()
    threading.Thread(target=stop_when_passed, args=(epoch,), daemon=True).start()
    print(f"working under epoch {epoch}", flush=True)
    # Read the state again, now: what this process knew before it owned the lock may be old.
    item = 0
    while True:
        write(epoch, item)
        item += 1
        time.sleep(2)


def write(epoch, item):
    """Your write. Send the epoch with it: `... WHERE last_fence <= %(epoch)s`. It is an argument, never looked up here."""
    print(f"write item {item} with epoch {epoch}", flush=True)


def main():
    try:
        config.load_incluster_config()
    except config.ConfigException:
        config.load_kube_config()
    # This library never releases a Lease. Ending at SIGTERM leaves it to expire, and a successor waits that long.
    signal.signal(signal.SIGTERM, lambda *_: stop("SIGTERM", 0))
    lock = LeaseLock(LEASE, NAMESPACE, ID)
    election = electionconfig.Config(
        lock, lease_duration=15, renew_deadline=10, retry_period=2,
        onstarted_leading=lead, onstopped_leading=lambda: stop("the Lease was lost"))
    try:
        leaderelection.LeaderElection(election).run()
    except Exception as error:
        # A refused connection comes out here, without onstopped_leading.
        stop(f"the election failed: {error}")


main()
