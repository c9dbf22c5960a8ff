#!/usr/bin/env bash
# The checks that are not cargo's own: licences and duplicates of crates, shell scripts, Go programs. Installs what is missing
# from the package registries.
set -euo pipefail
cd "$(dirname "$0")/.."

deny_version=0.20.2
deny=.cache/cargo-deny-$deny_version/bin/cargo-deny
if [ ! -x "$deny" ]; then
  echo "lint: building cargo-deny $deny_version, some minutes the first time" >&2
  cargo install --quiet --locked --version "$deny_version" --root ".cache/cargo-deny-$deny_version" cargo-deny
fi
# Advisories are fetched from outside, so they are checked where there is a network: cargo deny check advisories.
"$deny" --log-level error check licenses bans sources

if ! command -v shellcheck > /dev/null; then
  echo "lint: installing shellcheck" >&2
  apt-get install --yes --quiet shellcheck > /dev/null 2>&1 || { apt-get update > /dev/null && apt-get install --yes --quiet shellcheck > /dev/null; }
fi
shellcheck .ci/run bench/*.sh hack/*.sh hack/node/*.sh hack/postgres/*.sh

unformatted=$(gofmt -l hack/tools bench/peer)
[ -z "$unformatted" ] || { echo "lint: gofmt: $unformatted" >&2; exit 1; }
(cd hack/tools && go vet ./...)
(cd bench/peer && go vet ./...)

# What bench/README.md says of the corpus is what its labels say.
bench/audit-corpus.sh | while IFS= read -r line; do
  grep --quiet --line-regexp --fixed-strings "$line" bench/README.md || { echo "lint: bench/README.md does not say: $line" >&2; exit 1; }
done
