#!/usr/bin/env bash
# Builds the C++ libraries into tfctr/core/ and installs the package into .venv in editable form. One build at a time.
# The editable install is redone only when pyproject.toml or the checkout's place changed; else ninja alone runs, which
# looks for new .cc files too.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p build
exec 9>build/.build.lock
flock 9

installed_settings() {  # what of pyproject.toml the editable install depends on; not the linters' settings
  .venv/bin/python -c 'import json, tomllib
settings = tomllib.load(open("pyproject.toml", "rb"))
print(json.dumps([settings["build-system"], settings["project"], settings["tool"]["scikit-build"]], sort_keys=True))'
}

PATH="$PWD/.venv/bin:$PATH"
export PATH CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-2}"
stamp=.venv/.stamp-editable
want=$( (pwd; cat tfctr/version.py; installed_settings) | sha256sum | cut -d' ' -f1)
build_dir=$(echo build/cp311-*)

if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ] || [ ! -f "$build_dir/build.ninja" ]; then
  echo "installing tfctr into .venv (editable) and building its C++ libraries" >&2
  pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
  echo "$want" >"$stamp"
else
  log=build/.build.log
  if ninja -C "$build_dir" -j "$CMAKE_BUILD_PARALLEL_LEVEL" >"$log" 2>&1; then
    grep -E 'warning:|^\[[0-9]+/[0-9]+\] (Linking|Building)' "$log" || true
  else
    cat "$log" >&2
    exit 1
  fi
fi
