#!/usr/bin/env bash
# usage: in.sh WORK COMMAND… — runs a command inside the node's namespaces, as admin of its cluster
set -euo pipefail
work=$(realpath "$1")
shift
outer=$(cat "$work/pid")
inner=$(tr -d ' ' < "/proc/$outer/task/$outer/children")
exec nsenter --target "$inner" --mount --net --pid --wd="$PWD" -- env KUBECONFIG="$work/cp/kubeconfig" PATH="$(cat "$work/tools"):$PATH" "$@"
