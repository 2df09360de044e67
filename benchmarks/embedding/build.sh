#!/usr/bin/env bash
# Builds benchmarks/embedding/table_bench.cc over the storage library, as the release build compiles it, into
# build/bench/table_bench. No TensorFlow. Run the program without arguments for its usage.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=build/bench/embedding
mkdir -p "$out"
flags=(-std=c++17 -O3 -DNDEBUG -Wall -Wextra -Wno-unused-parameter -ffp-contract=off -I .)
for source in tfctr/core/storage/*.cc; do
  case "$source" in
    *_test.cc) continue ;;
    *_avx512.cc) isa=(-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma) ;;
    *_avx2.cc) isa=(-mavx2 -mfma) ;;
    *) isa=() ;;
  esac
  object="$out/$(basename "$source" .cc).o"
  if [ ! "$object" -nt "$source" ] || [ -n "$(find tfctr/core/storage -name '*.h' -newer "$object" -print -quit)" ]; then
    echo "compiling $source"
    g++ "${flags[@]}" "${isa[@]}" -c "$source" -o "$object"
  fi
done
g++ "${flags[@]}" benchmarks/embedding/table_bench.cc "$out"/*.o -o build/bench/table_bench -pthread
