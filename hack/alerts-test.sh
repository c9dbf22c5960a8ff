#!/usr/bin/env bash
# Tests the chart's alerts, firing and silent, with Prometheus' own promtool. It comes from Debian's package, unpacked and not
# installed.
set -euo pipefail
cd "$(dirname "$0")/.."

promtool=.cache/promtool/usr/bin/promtool
if [ ! -x "$promtool" ]; then
  echo "alerts-test: fetching promtool from Debian's package prometheus" >&2
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  (cd "$scratch" && chmod 755 . && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; }) > "$scratch/log" 2>&1 ||
    { cat "$scratch/log" >&2; exit 1; }
  dpkg -x "$scratch"/prometheus_*.deb "$scratch/unpacked"
  mkdir -p .cache && rm -rf .cache/promtool && cp -r "$scratch/unpacked" .cache/promtool
fi
# Whoever is called by an alert finds what to do, and that it fires is tested.
sed -n 's/^ *- alert: //p' charts/fencedlock/files/rules.yaml | while read -r alert; do
  grep -qx "## $alert" docs/runbooks.md || { echo "alerts-test: docs/runbooks.md has no section about $alert" >&2; exit 1; }
  [ "$(grep -c "alertname: $alert\$" hack/alerts-test.yaml)" -ge 2 ] || { echo "alerts-test: $alert is not tested firing and silent" >&2; exit 1; }
done

tests=$(mktemp -d)
trap 'rm -rf "$tests" "${scratch:-}"' EXIT
cp charts/fencedlock/files/rules.yaml hack/alerts-test.yaml "$tests"
"$promtool" check rules "$tests/rules.yaml" > /dev/null
"$promtool" test rules "$tests/alerts-test.yaml"
