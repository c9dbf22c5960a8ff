#!/usr/bin/env bash
# Builds the Go programs that the tests and the demo run: a real etcd, kube-apiserver and kubectl, helm, and our own helpers from hack/tools.
# Nothing is fetched but Go modules at the versions in hack/*/go.sum. What is already built costs milliseconds.
#
# usage: settings=$(hack/build-tools.sh [--with-controller-manager] [--with-node]) && eval "$settings"
#        (two steps, because `eval "$(…)"` would swallow a failure)
#
# stdout, made for eval (progress goes to stderr):
#   FENCEDLOCK_TOOLS=DIR     every binary: etcd, kube-apiserver, kubectl, helm, controlplane, elector, kstatus, ociimage; with
#                            --with-node also what a real node needs: kubelet, kube-scheduler, containerd, CNI plugins, runc
#   KUBEBUILDER_ASSETS=DIR   etcd, kube-apiserver, kubectl: the directory that envtest expects
# Both name .cache/tools/bin, the stable path that the Rust tests use. With KUBEBUILDER_ASSETS set to a directory that holds etcd and
# kube-apiserver, that directory's binaries are linked there and neither is built.
set -euo pipefail

hack=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${hack%/*}/.cache/tools
build_pid='' scratch=''

say() { printf 'build-tools: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

cleanup() {
  # A background job ignores Ctrl-C, so the compiler has to be told.
  if [[ -n $build_pid ]]; then kill "$build_pid" 2>/dev/null || true; fi
  if [[ -n $scratch ]]; then rm -rf "$scratch"; fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

with_controller_manager='' with_node=''
for arg in "$@"; do
  case $arg in
    --with-controller-manager) with_controller_manager=yes ;;
    --with-node) with_controller_manager=yes with_node=yes ;;
    *) die "unknown argument $arg; usage: hack/build-tools.sh [--with-controller-manager] [--with-node]" ;;
  esac
done

# A caller's Go settings must not leak into the cache: same sources, same binaries.
export CGO_ENABLED=0 GOWORK=off GOFLAGS=-buildvcs=false
command -v go >/dev/null ||
  die "there is no go in PATH. Install Go 1.26 or later (your distribution's golang package where it is that new, else the toolchain from the Go project's download page) and run this again"
# One call: $toolchain is part of every key, since another compiler makes other binaries.
toolchain=$(cd "$hack/controlplane" && go env GOVERSION GOOS GOARCH | tr '\n' ' ')
if [[ $toolchain =~ ^go1\.([0-9]+) ]] && ((BASH_REMATCH[1] < 26)); then
  die "Go 1.26 or later is needed, found ${toolchain%% *}. Install a newer one, or allow it to fetch its own with GOTOOLCHAIN=auto"
fi

# key MODULE FILE...: the directory name under which the module's binaries are kept.
key() { printf '%s-%.16s' "$1" "$( (cat "${@:2}" && echo "$toolchain") | sha256sum)"; }
controlplane=$(key controlplane "$hack"/controlplane/go.{mod,sum})
helm=$(key helm "$hack"/helm/go.{mod,sum})
node=$(key node "$hack"/node/go.{mod,sum})
tools=$(key tools "$hack"/tools/go.{mod,sum} "$hack"/tools/cmd/*/*.go)

# A directory inside our own cache is what an earlier eval of our output has set: not the user's choice, and perhaps stale.
user_assets=''
if [[ -n ${KUBEBUILDER_ASSETS:-} && -x $KUBEBUILDER_ASSETS/etcd && -x $KUBEBUILDER_ASSETS/kube-apiserver ]]; then
  user_assets=$(realpath "$KUBEBUILDER_ASSETS")
  mkdir -p "$cache"
  case $user_assets/ in "$(realpath "$cache")"/*) user_assets='' ;; esac
fi

# want NAME DIR: NAME is to be had from DIR (relative to the cache, or absolute when it is the user's).
declare -A from=()
want() { from[$1]=$2; }
want_kubernetes() {
  if [[ -n $user_assets && -x $user_assets/$1 ]]; then want "$1" "$user_assets"; else want "$1" "$controlplane/bin"; fi
}
want_kubernetes etcd
want_kubernetes kube-apiserver
want_kubernetes kubectl
# Once built it stays in the set, so that a later call without the flag does not take it from a running test.
if [[ -n $with_controller_manager || -x $cache/$controlplane/bin/kube-controller-manager ]]; then
  want_kubernetes kube-controller-manager
fi
node_kubernetes=(kubelet kube-scheduler)
node_containers=(cmd/containerd cmd/ctr cmd/containerd-shim-runc-v2)
node_network=(plugins/main/bridge plugins/main/loopback plugins/ipam/host-local)
if [[ -n $with_node || -x $cache/$node/bin/runc ]]; then
  for program in "${node_kubernetes[@]}"; do want_kubernetes "$program"; done
  for program in "${node_containers[@]}" "${node_network[@]}" runc; do want "${program##*/}" "$node/bin"; done
fi
want helm "$helm/bin"
for program in "$hack"/tools/cmd/*/; do want "$(basename "$program")" "$tools/bin"; done

path_of() { case ${from[$1]} in /*) echo "${from[$1]}/$1" ;; *) echo "$cache/${from[$1]}/$1" ;; esac }
missing() { [[ ! -x $(path_of "$1") ]]; }

# The set of links is named after what it links to; bin points at the set, so one rename switches all binaries at once.
listing=$(for name in "${!from[@]}"; do echo "$name ${from[$name]}"; done | sort)
set_name=$(printf 'set-%.16s' "$(sha256sum <<<"$listing")")

complete() {
  local name
  [[ $(readlink "$cache/bin" 2>/dev/null) == "$set_name" ]] || return 1
  for name in "${!from[@]}"; do [[ -x $cache/bin/$name ]] || return 1; done
}

# build LABEL EXPECTATION DIR MODULE_DIR LDFLAGS PACKAGE [NAME]: one `go build`, with a sign of life each minute.
# Without NAME, PACKAGE is a pattern and every program keeps the name of its package.
build() {
  local label=$1 expectation=$2 out=$cache/$3 started=$SECONDS
  say "building $label: $expectation"
  mkdir -p "$out"
  scratch=$(mktemp -d "$cache/scratch.XXXXXX")
  (cd "$hack/$4" && exec go build -trimpath -ldflags "$5" -o "$scratch/${7:-}" "$6") >&2 9>&- &
  build_pid=$!
  until timeout 60 tail --pid="$build_pid" -s 0.2 -f /dev/null 9>&-; do
    say "still building $label, $((SECONDS - started)) s so far"
  done
  wait "$build_pid" || { build_pid=''; die "building $label failed after $((SECONDS - started)) s; the compiler's message is above"; }
  build_pid=''
  # Only complete binaries get their name: an interrupted build leaves nothing that looks finished.
  mv -f "$scratch"/* "$out/"
  rm -rf "$scratch"
  scratch=''
  say "built $label in $((SECONDS - started)) s"
}

version_of() { (cd "$hack/$1" && go list -m -f '{{.Version}}' "$2"); }

build_controlplane() {
  local kubernetes minor ldflags component expectation
  if missing etcd; then
    build "etcd $(version_of controlplane go.etcd.io/etcd/server/v3)" "about half a minute the first time, seconds afterwards" \
      "$controlplane/bin" controlplane "-s -w" go.etcd.io/etcd/server/v3 etcd
  fi
  kubernetes=$(version_of controlplane k8s.io/kubernetes)
  minor=${kubernetes#v1.}
  minor=${minor%%.*}
  # Without these a server reports v0.0.0, and clients and charts that look at the version take another path.
  ldflags="-s -w"
  ldflags+=" -X k8s.io/component-base/version.gitVersion=$kubernetes"
  ldflags+=" -X k8s.io/component-base/version.gitMajor=1"
  ldflags+=" -X k8s.io/component-base/version.gitMinor=$minor"
  for component in kube-apiserver kubectl kube-controller-manager "${node_kubernetes[@]}"; do
    if [[ -z ${from[$component]:-} ]] || ! missing "$component"; then continue; fi
    case $component in
      kube-apiserver) expectation="3 to 8 minutes on two cores the first time, seconds afterwards" ;;
      kubectl) expectation="under a minute the first time, seconds afterwards" ;;
      *) expectation="1 to 2 minutes the first time, seconds afterwards" ;;
    esac
    build "$component $kubernetes from its Go module" "$expectation" \
      "$controlplane/bin" controlplane "$ldflags" "k8s.io/kubernetes/cmd/$component" "$component"
  done
}

build_helm() {
  local version
  missing helm || return 0
  version=$(version_of helm helm.sh/helm/v4)
  build "helm $version" "2 to 3 minutes the first time, seconds afterwards" \
    "$helm/bin" helm "-s -w -X helm.sh/helm/v4/internal/version.version=$version" helm.sh/helm/v4/cmd/helm helm
}

build_node() {
  local package
  [[ -n ${from[containerd]:-} ]] || return 0
  for package in "${node_containers[@]}"; do
    if missing "${package##*/}"; then
      build "${package##*/}" "under a minute the first time, seconds afterwards" "$node/bin" node "-s -w" \
        "github.com/containerd/containerd/v2/$package" "${package##*/}"
    fi
  done
  for package in "${node_network[@]}"; do
    if missing "${package##*/}"; then
      build "${package##*/}" "seconds" "$node/bin" node "-s -w" "github.com/containernetworking/plugins/$package" "${package##*/}"
    fi
  done
  missing runc || return 0
  # Written in Go with a C part, so it comes from Debian. Unpacked, not installed.
  say "fetching runc from Debian's package"
  scratch=$(mktemp -d "$cache/scratch.XXXXXX")
  (cd "$scratch" && { apt-get download runc || { apt-get update && apt-get download runc; }; } && dpkg -x runc_*.deb unpacked) >&2 ||
    die "the Debian package runc could not be fetched; the message is above"
  mv -f "$scratch/unpacked/usr/sbin/runc" "$cache/$node/bin/"
  rm -rf "$scratch"
  scratch=''
}

build_own_tools() {
  local name
  for name in "${!from[@]}"; do
    if [[ ${from[$name]} == "$tools/bin" ]] && missing "$name"; then
      build "our own tools" "1 to 2 minutes the first time, seconds afterwards" "$tools/bin" tools "-s -w" ./cmd/...
      return
    fi
  done
}

link_set() {
  local name dir=$cache/$set_name
  if [[ ! -d $dir ]]; then
    scratch=$(mktemp -d "$cache/scratch.XXXXXX")
    chmod 755 "$scratch"
    for name in "${!from[@]}"; do
      # Relative, so that a checkout may be moved with its cache.
      case ${from[$name]} in
        /*) ln -s "${from[$name]}/$name" "$scratch/$name" ;;
        *) ln -s "../${from[$name]}/$name" "$scratch/$name" ;;
      esac
    done
    mv -T "$scratch" "$dir"
    scratch=''
  fi
  ln -sfn "$set_name" "$cache/bin.new"
  mv -fT "$cache/bin.new" "$cache/bin"
}

# Two weeks bound the disk space that edits of our tools and version bumps leave behind; a bisect across them stays cheap.
prune() {
  local dir
  for dir in "$controlplane" "$helm" "$node" "$tools" "$set_name"; do
    if [[ -d $cache/$dir ]]; then touch "$cache/$dir"; fi
  done
  find "$cache" -mindepth 1 -maxdepth 1 -type d -mtime +14 -exec rm -rf {} +
}

if ! complete; then
  mkdir -p "$cache"
  # The cache ignores itself, wherever it is.
  echo '*' >"$cache/.gitignore"
  exec 9>"$cache/lock"
  if ! flock -n 9; then
    say "another build-tools.sh is at work in this checkout: waiting for it"
    flock 9
  fi
  # We hold the lock, so a scratch directory that is still there belongs to a run that was killed.
  rm -rf "$cache"/scratch.*
  build_controlplane
  build_helm
  build_node
  build_own_tools
  link_set
  prune
  say "ready after $SECONDS s: $cache/bin"
fi

printf 'FENCEDLOCK_TOOLS=%q\nKUBEBUILDER_ASSETS=%q\n' "$cache/bin" "$cache/bin"
