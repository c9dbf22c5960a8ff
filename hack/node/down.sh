#!/usr/bin/env bash
# usage: down.sh WORK — ends every process of the node: the kernel does it when the first one of the pid namespace goes. Removes
# its cgroups.
set -euo pipefail
outer=$(cat "$1/pid" 2> /dev/null) || exit 0
for first in $(cat "/proc/$outer/task/$outer/children" 2> /dev/null || true); do kill -KILL "$first" || true; done
timeout 30 tail --pid="$outer" -f /dev/null || true
find /sys/fs/cgroup -depth -type d -path '*/k8s.io*' -exec rmdir {} + 2> /dev/null || true
