#!/usr/bin/env bash
# Builds every C++ test (tfctr/core/*/*_test.cc) under AddressSanitizer and UndefinedBehaviorSanitizer and runs them.
set -euo pipefail
cd "$(dirname "$0")/.."

PATH="$PWD/.venv/bin:$PATH"
dir=build/native-san
jobs="${CMAKE_BUILD_PARALLEL_LEVEL:-2}"
mkdir -p build
exec 9>build/.native.lock
flock 9

[ -f "$dir/build.ninja" ] ||
  cmake -S . -B "$dir" -G Ninja -DTFCTR_NATIVE_TESTS=ON -DTFCTR_SANITIZE=address,undefined >/dev/null
cmake --build "$dir" -j "$jobs"
ctest --test-dir "$dir" --output-on-failure --no-tests=error -j "$jobs" "$@"
