#!/usr/bin/env bash
# Builds the fuzzers under AddressSanitizer and UndefinedBehaviorSanitizer and runs each for SECONDS_EACH (60) seconds.
# What they find is added to build/fuzz/<name>; an input that breaks something is left in build/fuzz.
set -euo pipefail
cd "$(dirname "$0")/../.."

clang="$(compgen -c clang++ | sort -V | head -n 1 || true)"
[ -n "$clang" ] || { echo "make fuzz needs clang++ with libFuzzer (Debian: apt-get install clang)" >&2; exit 1; }
tensorflow="$(.venv/bin/python -c \
  "import importlib.util as u, os; print(os.path.dirname(u.find_spec('tensorflow').origin))")"
out=build/fuzz
mkdir -p "$out"/wire "$out"/tensor_proto "$out"/tensor_proto_seeds
flags=(-std=c++17 -O1 -g -w -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I.)
sources=$(ls tfctr/core/wire/*.cc | grep -v _test.cc)

"$clang" "${flags[@]}" tests/fuzz/fuzz_wire.cc $sources -o "$out/fuzz_wire"
# TensorFlow's own libraries are not instrumented: no check of virtual tables and no leaks.
"$clang" "${flags[@]}" -fno-sanitize=vptr -DNDEBUG -D_GLIBCXX_USE_CXX11_ABI=1 -DEIGEN_MAX_ALIGN_BYTES=64 \
  -isystem "$tensorflow/include" tests/fuzz/fuzz_tensor_proto.cc $sources "$tensorflow/libtensorflow_framework.so.2" \
  "$tensorflow/libtensorflow_cc.so.2" -Wl,-rpath,"$tensorflow" -o "$out/fuzz_tensor_proto"

for seed in tests/fuzz/corpus/2_*; do tail -c +2 "$seed" >"$out/tensor_proto_seeds/$(basename "$seed")"; done
corpus="$PWD/tests/fuzz/corpus"
cd "$out"
common=(-max_total_time="${SECONDS_EACH:-60}" -timeout=10 -print_final_stats=1 -verbosity=0)
./fuzz_wire "${common[@]}" -max_len=2048 -rss_limit_mb=1024 wire "$corpus"
./fuzz_tensor_proto "${common[@]}" -max_len=600 -rss_limit_mb=3000 -detect_leaks=0 tensor_proto tensor_proto_seeds
