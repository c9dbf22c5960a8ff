#!/usr/bin/env bash
# A PostgreSQL server of one's own, on a free port of 127.0.0.1, for tests and the demo. It ends with our standard input, so nothing is
# left behind however a test ends.
#
# usage: server.sh DIRECTORY [setting=value ...]
# Prints `ready PORT`, then carries out commands, a line each, and prints `ok` or `failed`:
#   crash   end it as a power failure does, and start it again
#   stop, start
#   reload  read its settings again
#   standby DIRECTORY   start a streaming standby of it there; prints `ready PORT`
#   promote             make that standby a primary, after this server was ended for good
# The superuser is postgres with password postgres.
set -euo pipefail
dir=${1:?directory}; shift
die() { echo "postgres: $*" >&2; exit 1; }

bin=$(find /usr/lib/postgresql -maxdepth 2 -name bin 2> /dev/null | sort -V | tail -1)
[ -n "$bin" ] || { command -v pg_config > /dev/null && bin=$(pg_config --bindir); } || die "no server is installed: run hack/build-clients.sh"
# A server refuses to run as root.
if [ "$(id -u)" = 0 ]; then as() { runuser --user postgres -- "$@"; }; else as() { "$@"; }; fi

mkdir -p "$dir"
dir=$(realpath "$dir")
rm -rf "$dir"
mkdir -p "$dir"
[ "$(id -u)" != 0 ] || chown postgres "$dir"
settings=()
for setting in "$@"; do settings+=(-c "$setting"); done

port() { # a port that nobody listens on, below those that the kernel gives to outgoing connections
  local port
  while port=$((12000 + RANDOM % 20000)); (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null; do :; done
  echo "$port"
}
start() { # start DATA PORT: waits until it serves
  as "$bin/pg_ctl" --pgdata="$1" --log="$1.log" --timeout=60 --wait --silent \
    --options="-p $2 -c listen_addresses=127.0.0.1 -c unix_socket_directories='' ${settings[*]@Q}" start > /dev/null 2>&1
}
stop() { as "$bin/pg_ctl" --pgdata="$1" --mode="$2" --timeout=60 --silent stop > /dev/null 2>&1; }

data=$dir/data standby='' own=''
# shellcheck disable=SC2329  # called by the trap
finish() {
  local one
  for one in "$data" "$standby"; do [ -z "$one" ] || stop "$one" immediate || true; done
  rm -rf "$dir"
}
trap finish EXIT
echo postgres > "$dir/password"
[ "$(id -u)" != 0 ] || chown postgres "$dir/password"
as "$bin/initdb" --pgdata="$data" --username=postgres --auth=scram-sha-256 --pwfile="$dir/password" --encoding=UTF8 --locale=C.UTF-8 > "$dir/initdb.log" 2>&1 ||
  die "initdb failed: $(tail -3 "$dir/initdb.log")"
as openssl req -new -x509 -days 3650 -nodes -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout "$data/server.key" -out "$data/server.crt" > /dev/null 2>&1 || true
chmod 600 "$data/server.key" 2> /dev/null || true
if [ -e "$data/server.crt" ]; then
  as sh -c "echo ssl=on >> '$data/postgresql.conf'"
  as cp "$data/server.crt" "$dir/ca.crt"
  chmod 755 "$dir"; chmod 644 "$dir/ca.crt"
fi
for attempt in 1 2 3 4 5; do
  own=$(port)
  start "$data" "$own" && break
  [ "$attempt" != 5 ] || die "the server does not start: $(tail -3 "$data.log")"
done
echo "ready $own"

answer() { if "$@"; then echo ok; else echo failed; fi; }
crash() { stop "$data" immediate && start "$data" "$own"; }
reload() { as "$bin/pg_ctl" --pgdata="$data" --silent reload > /dev/null 2>&1; }
copy() { # copy DIRECTORY: prints the port that it serves on
  local attempt other
  standby=$1
  rm -rf "$standby"
  PGPASSWORD=postgres as env PGPASSWORD=postgres "$bin/pg_basebackup" --host=127.0.0.1 --port="$own" --username=postgres --pgdata="$standby" --write-recovery-conf --checkpoint=fast > /dev/null 2>&1 || return
  for attempt in 1 2 3 4 5; do
    other=$(port)
    if start "$standby" "$other"; then echo "ready $other"; return; fi
  done
  return 1
}
promote() { stop "$data" immediate && as "$bin/pg_ctl" --pgdata="$standby" --wait --silent promote > /dev/null 2>&1; }
while read -r command argument; do
  case $command in
    crash | reload | promote) answer "$command" ;;
    stop) answer stop "$data" immediate ;;
    start) answer start "$data" "$own" ;;
    standby)
      # Not in a subshell: what ends everything has to know of it.
      copy "$argument" || echo failed
      ;;
    *) echo failed ;;
  esac
done
