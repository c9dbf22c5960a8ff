#!/usr/bin/env bash
# usage: up.sh WORK IMAGES — starts a control plane and a node in namespaces of their own; returns when the node is Ready. FENCEDLOCK_TOOLS
# names the folder with the binaries (build-tools.sh --with-node).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

mkdir -p "$1"
TOOLS=$(realpath "${FENCEDLOCK_TOOLS:?}") WORK=$(realpath "$1") IMAGES=$(realpath "$2")
export TOOLS WORK IMAGES
"$here/able.sh"
setsid unshare --mount --net --cgroup --pid --fork --mount-proc --kill-child bash "$here/inside.sh" > "$WORK/up.log" 2>&1 3>&- &
echo $! > "$WORK/pid"
deadline=$((SECONDS + 120))
until "$here/in.sh" "$WORK" kubectl get node node1 2> /dev/null | grep -q ' Ready'; do
  if ((SECONDS > deadline)) || ! kill -0 "$(cat "$WORK/pid")" 2> /dev/null; then
    echo "node: node1 is not Ready; $WORK/up.log ends with:" >&2
    tail -n 20 "$WORK/up.log" >&2
    exit 1
  fi
  sleep 0.25
done
