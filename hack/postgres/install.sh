#!/usr/bin/env bash
# Makes sure that PostgreSQL's server and client are there, and with --all PgBouncer too. What the machine lacks comes from Debian, where
# it is Debian and we are root. What is there already costs milliseconds.
set -euo pipefail

die() { echo "postgres: $*" >&2; exit 1; }
server() { [ -n "$(find /usr/lib/postgresql -maxdepth 3 -name initdb 2> /dev/null)" ] || { command -v pg_config > /dev/null && [ -x "$(pg_config --bindir)/initdb" ]; }; }
packages=()
server || packages+=(postgresql)
command -v psql > /dev/null && command -v pgbench > /dev/null || packages+=(postgresql)
command -v openssl > /dev/null || packages+=(openssl)
if [ "${1:-}" = --all ]; then [ -x /usr/sbin/pgbouncer ] || command -v pgbouncer > /dev/null || packages+=(pgbouncer); fi
[ ${#packages[@]} -gt 0 ] || exit 0

if ! command -v apt-get > /dev/null || [ "$(id -u)" != 0 ]; then die "missing: ${packages[*]}: install them and run this again"; fi
echo "postgres: installing ${packages[*]}" >&2
{ apt-get install --yes --quiet "${packages[@]}" || { apt-get update && apt-get install --yes --quiet "${packages[@]}"; }; } > /dev/null 2>&1 ||
  die "Debian's packages ${packages[*]} could not be installed: install them and run this again"
server || die "the server is still not there"
