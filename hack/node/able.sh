#!/usr/bin/env bash
# Says in one line what this machine lacks to run a real node, and fails then.
set -euo pipefail

lacks() { echo "node: this machine cannot run a real node: $1" >&2; exit 1; }

[ "$(uname -s)" = Linux ] || lacks "it is not Linux"
[ "$(id -u)" = 0 ] || lacks "it needs root"
for program in unshare nsenter ip mount openssl setsid apt-get dpkg; do
  command -v "$program" > /dev/null || lacks "there is no $program in PATH"
done
for controller in cpu memory pids devices freezer; do
  grep -Eq "^cgroup /[^ ]* cgroup .*\b$controller\b" /proc/mounts || lacks "there is no cgroup v1 hierarchy of $controller"
done
unshare --mount --net --cgroup --pid --fork --mount-proc sh -c \
  'mount --make-rprivate / && mkdir -p /run && mount -t tmpfs tmpfs /run && ip link add able0 type veth peer name able1 && mkdir /run/x && mount -t cgroup -o pids cgroup /run/x' \
  2> /dev/null || lacks "namespaces, veth pairs or cgroup mounts are not allowed"
