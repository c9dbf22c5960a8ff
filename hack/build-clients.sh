#!/usr/bin/env bash
# Makes .cache/clients: the clients of other languages that the tests run, at the versions of hack/clients/*. What is already made costs
# milliseconds.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { echo "clients: $*" >&2; exit 1; }
# made DIRECTORY: whether it was completed for what it is named after.
made() { [ -e "$1/complete" ] || { rm -rf "$1" && false; }; }

# usage: package COMMAND PACKAGE: what the machine lacks comes from Debian, where it is Debian.
package() {
  command -v "$1" > /dev/null && return
  command -v apt-get > /dev/null || die "there is no $1 in PATH: install it and run this again"
  { apt-get install --yes --quiet "$2" || { apt-get update && apt-get install --yes --quiet "$2"; }; } > /dev/null 2>&1 ||
    die "there is no $1 in PATH, and Debian's package $2 could not be installed: install it and run this again"
}

python=.cache/python-$(sha256sum hack/clients/python/requirements.txt | cut -c1-16)
if ! made "$python"; then
  echo "clients: Python with $(cat hack/clients/python/requirements.txt)" >&2
  package python3 python3
  python3 -m venv "$python" > /dev/null 2>&1 || {
    # Debian has venv in a package of its own.
    { apt-get install --yes --quiet python3-venv || { apt-get update && apt-get install --yes --quiet python3-venv; }; } > /dev/null 2>&1 ||
      die "this python3 has no venv: install it (Debian's python3-venv) and run this again"
    rm -rf "$python"
    python3 -m venv "$python"
  }
  "$python/bin/python" -m pip install --quiet --disable-pip-version-check --requirement hack/clients/python/requirements.txt >&2
  touch "$python/complete"
fi

java=.cache/java-$(cat hack/clients/java/* | sha256sum | cut -c1-16)
if ! made "$java"; then
  echo "clients: Java with fabric8 $(sed -n '/kubernetes-client</,/version/s/.*<version>\(.*\)<.*/\1/p' hack/clients/java/pom.xml)" >&2
  package javac default-jdk-headless
  package mvn maven
  mkdir -p "$java"
  mvn --quiet --batch-mode --file hack/clients/java/pom.xml dependency:copy-dependencies "-DoutputDirectory=$PWD/$java/lib" >&2
  javac -cp "$java/lib/*" -d "$java/classes" hack/clients/java/Elector.java
  touch "$java/complete"
fi

mkdir -p .cache/clients
ln -sfn "../${python##*/}" .cache/clients/python
ln -sfn "../${java##*/}" .cache/clients/java
