#!/usr/bin/env bash
# Makes .venv with the pinned dependencies, or returns at once when the one there fits (its stamp holds the hash of
# what it was made from). Usage: tools/setup.sh [extra-requirements-file ...]
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
APT="apt-get install -y python3 python3-venv python3-dev g++ make git"

die() { printf '%s\n' "$@" >&2; exit 1; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 python3}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  [ -z "${PYTHON:-}" ] || die "PYTHON=$PYTHON is no Python 3.11"
  die "Python 3.11 is needed and was not found (PYTHON=/path/to/python3.11 names one). On Debian 12:" "  $APT"
}

require_tools() {  # $1: python
  "$1" -c 'import ensurepip, venv' 2>/dev/null || die "$1 cannot make virtual environments. On Debian 12:" "  $APT"
  "$1" -c 'import os, sys, sysconfig; sys.exit(not os.path.isfile(sysconfig.get_path("include") + "/Python.h"))' ||
    die "Python.h of $1 is missing; the C++ part needs it. On Debian 12:" "  $APT"
  command -v "${CXX:-g++}" >/dev/null || die "No C++ compiler (${CXX:-g++}). On Debian 12:" "  $APT"
}

install_stamped() {  # $1: stamp name, $2...: requirements files; the last may be the one without dependencies
  local stamp="$VENV/.stamp-$1" hash file
  shift
  hash=$(cat "$@" | sha256sum | cut -d' ' -f1)
  [ "$(cat "$stamp" 2>/dev/null)" = "$hash" ] && return
  for file in "$@"; do
    echo "installing $file" >&2
    if [ "$file" = requirements-nodeps.txt ]; then
      "$VENV/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$file"
    else
      "$VENV/bin/pip" install --quiet --disable-pip-version-check -r "$file"
    fi
  done
  echo "$hash" >"$stamp"
}

mkdir -p build
exec 9>build/.setup.lock
flock 9

if [ ! -x "$VENV/bin/python" ] || ! "$VENV/bin/python" -c '' 2>/dev/null; then
  python=$(find_python)
  require_tools "$python"
  echo "making $VENV with $python (the first time takes a few minutes)" >&2
  rm -rf "$VENV"
  "$python" -m venv "$VENV"
fi
require_tools "$VENV/bin/python"
install_stamped base requirements.txt requirements-dev.txt requirements-nodeps.txt
for extra in "$@"; do
  install_stamped "$(basename "$extra" .txt)" "$extra"
done
