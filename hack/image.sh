#!/usr/bin/env bash
# Builds the operator's container image without Docker: the static program FROM scratch, as an OCI image layout in a tar file that
# `docker load`, `podman load`, `skopeo` and `ctr images import` read. The same sources give the same bytes.
#
# usage: hack/image.sh [OUT.tar] [NAME:TAG]      default: target/image/fencedlock.tar localhost/fencedlock:<version>
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$(hack/build-tools.sh) && eval "$tools"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
out=${1:-target/image/fencedlock.tar}
name=${2:-localhost/fencedlock:$version}
case $(uname -m) in
  x86_64) architecture=amd64 ;;
  aarch64) architecture=arm64 ;;
  *) echo "image: no image for $(uname -m)" >&2; exit 1 ;;
esac
target=$(uname -m)-unknown-linux-gnu

echo "image: building the static program, some minutes the first time" >&2
# A target of its own keeps proc macros dynamic and the other builds' artefacts in place. No path of this machine gets into it.
home=${CARGO_HOME:-$HOME/.cargo}
RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=$PWD=/fencedlock --remap-path-prefix=$home=/cargo" \
  cargo build --quiet --locked --release --target "$target" --target-dir target/image
program=target/image/$target/release/fencedlock
if readelf --program-headers "$program" | grep -q INTERP; then echo "image: $program is not static" >&2; exit 1; fi
mkdir -p "$(dirname "$out")"
"$FENCEDLOCK_TOOLS/ociimage" --name "$name" --architecture "$architecture" --entrypoint /fencedlock --out "$out" \
  --labels "org.opencontainers.image.title=fencedlock,org.opencontainers.image.version=$version,org.opencontainers.image.licenses=Apache-2.0" \
  "fencedlock=$program"
