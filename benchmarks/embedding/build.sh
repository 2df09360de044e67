#!/usr/bin/env bash
# Builds every micro benchmark of this folder (*_bench.cc) over the TensorFlow-free sources, into build/bench/.
#
#   benchmarks/embedding/build.sh && build/bench/rows_bench init
set -euo pipefail
cd "$(dirname "$0")/../.."

out=build/bench
mkdir -p "$out"
flags=(-std=c++17 -O3 -DNDEBUG -Wall -Wextra -Wno-unused-parameter -ffp-contract=off -I.)

compile() {  # SOURCE OBJECT, when the source or any header is newer
  local isa=()
  case "$1" in  # as CMakeLists.txt, tfctr_set_isa
    *_avx512.cc) isa=(-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma) ;;
    *_avx2.cc) isa=(-mavx2 -mfma) ;;
  esac
  if [ ! -f "$2" ] || [ -n "$(find "$1" tfctr/core/storage tfctr/core/embedding \( -name '*.h' -o -path "$1" \) -newer "$2" -print -quit)" ]; then
    g++ "${flags[@]}" "${isa[@]}" -c "$1" -o "$2"
  fi
}

objects=()
for source in tfctr/core/storage/*.cc tfctr/core/embedding/*.cc; do
  case "$source" in *_test.cc) continue ;; esac
  object="$out/$(basename "${source%.cc}").o"
  compile "$source" "$object"
  objects+=("$object")
done
for source in benchmarks/embedding/*_bench.cc; do
  name="$(basename "${source%.cc}")"
  compile "$source" "$out/$name.o"
  g++ -pthread "$out/$name.o" "${objects[@]}" -o "$out/$name"
  echo "$out/$name"
done
