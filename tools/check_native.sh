#!/usr/bin/env bash
# Builds every C++ test (tfctr/core/*/*_test.cc) under AddressSanitizer and UndefinedBehaviorSanitizer and runs them; then
# those that start threads under ThreadSanitizer. Arguments go to ctest.
set -euo pipefail
cd "$(dirname "$0")/.."

PATH="$PWD/.venv/bin:$PATH"
jobs="${CMAKE_BUILD_PARALLEL_LEVEL:-2}"
mkdir -p build
exec 9>build/.native.lock
flock 9

check() {
  local dir="$1" sanitizers="$2"
  shift 2
  [ -f "$dir/build.ninja" ] ||
    cmake -S . -B "$dir" -G Ninja -DTFCTR_NATIVE_TESTS=ON -DTFCTR_SANITIZE="$sanitizers" >/dev/null
  cmake --build "$dir" -j "$jobs"
  # With arguments (-R store) a kind of build may have no such test.
  ctest --test-dir "$dir" --output-on-failure --no-tests="$([ $# -eq 0 ] && echo error || echo ignore)" -j "$jobs" "$@"
}

check build/native-san address,undefined "$@"
check build/native-tsan thread "$@"
