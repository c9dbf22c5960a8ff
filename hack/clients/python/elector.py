"""An ordinary leader election with Python's `kubernetes` package. The tests use it to show that unmodified clients get epochs. Prints
"leading" once it is elected. usage: elector.py NAMESPACE LEASE IDENTITY"""

import sys
import threading

from kubernetes import config
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock


def lead():
    print("leading", flush=True)
    threading.Event().wait()


namespace, lease, identity = sys.argv[1:]
config.load_kube_config()
# The package takes whole seconds, and waits at least one between two tries.
election = electionconfig.Config(
    LeaseLock(lease, namespace, identity),
    lease_duration=4,
    renew_deadline=3,
    retry_period=1,
    onstarted_leading=lead,
    onstopped_leading=lambda: sys.exit(3),
)
leaderelection.LeaderElection(election).run()
