#!/usr/bin/env bash
# Makes .venv-tfra: TensorFlow Recommenders Addons 0.8.1 on TensorFlow 2.16.2, which benchmarks/bench_embedding_*
# run their worker in. Returns at once when the environment is there. Usage: tools/setup_tfra.sh  (PYTHON=... names a 3.11)
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv-tfra
FILES=(requirements-tfra-deps.txt requirements-tfra.txt)

die() { printf '%s\n' "$@" >&2; exit 1; }

python=$(command -v "${PYTHON:-python3.11}") || die "Python 3.11 is needed and was not found (PYTHON=/path names one)"
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || die "$python is no Python 3.11"

mkdir -p build
exec 9>build/.setup_tfra.lock
flock 9

hash=$(cat "${FILES[@]}" | sha256sum | cut -d' ' -f1)
[ "$(cat "$VENV/.stamp" 2>/dev/null)" != "$hash" ] || exit 0

echo "making $VENV with $python (some minutes, 2 GB)" >&2
rm -rf "$VENV"
"$python" -m venv "$VENV"
pip=("$VENV/bin/pip" install --quiet --disable-pip-version-check)
"${pip[@]}" -r "${FILES[0]}"
"${pip[@]}" --no-deps -r "${FILES[1]}"
TF_CPP_MIN_LOG_LEVEL=3 TF_USE_LEGACY_KERAS=1 "$VENV/bin/python" -c 'import tensorflow_recommenders_addons as tfra; tfra.dynamic_embedding' ||
  die "$VENV was made but TFRA does not import there"
echo "$hash" >"$VENV/.stamp"
