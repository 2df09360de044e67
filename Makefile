# Everything a developer runs. Each target does its own set-up (.venv, pinned dependencies, C++ build) and skips what
# is there already. `make help` lists them.
PY := .venv/bin/python
PYTEST := $(PY) -m pytest
# Two worker processes: TensorFlow is imported twice, and both cores are used. A worker that runs out takes from the other.
PYTEST_ARGS ?= -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup build demo example-ev example-serving test test-gpu test-long check check-native fuzz lint bazel format bench bench-report clean

help:  ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup:  ## .venv with the pinned dependencies
	@tools/setup.sh

build: setup  ## The C++ libraries, and the command `tfctr` in .venv/bin
	@tools/build.sh

demo: build  ## Train a Wide & Deep, convert it, compare, benchmark and profile; DATA=DIR runs it on MovieLens-100k
	@$(PY) -m examples.demo $(if $(DATA),--data "$(DATA)")

example-ev: build  ## DeepFM on embedding variables: train, evict, checkpoint, restore in a new process; DATA=DIR as above
	@$(PY) -m examples.deepfm_ev $(if $(DATA),--data "$(DATA)")

example-serving: build  ## The same model: train, convert, serve, train on, delta, apply, compact, each in a new process; DATA=DIR as above
	@$(PY) -m examples.ev_serving $(if $(DATA),--data "$(DATA)")

test: build  ## All tests but the long ones (ARGS=... goes to pytest)
	@$(PYTEST) $(PYTEST_ARGS) -m "not long" $(ARGS)

test-gpu: build  ## What needs a GPU (skips by name what the machine lacks; CUDA_VISIBLE_DEVICES chooses the GPU)
	@CUDA_VISIBLE_DEVICES=$${CUDA_VISIBLE_DEVICES-0} $(PYTEST) -rs tests/gpu $(ARGS)

test-long: build  ## The long tests too
	@$(PYTEST) $(PYTEST_ARGS) $(ARGS)

check: build lint check-native  ## Linters, types, import directions, C++ tests under sanitizers

lint: build
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@git ls-files 'tfctr/*.cc' 'tfctr/*.h' 'benchmarks/*.cc' 'benchmarks/*.h' | xargs -r .venv/bin/clang-format --dry-run --Werror
	@$(PYTEST) -q -p no:cacheprovider tests/test_layering.py

check-native: setup  ## The C++ tests under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer
	@tools/check_native.sh

fuzz: setup  ## The wire parser under libFuzzer and sanitizers, SECONDS=60 each (needs clang; tests/fuzz/README.md)
	@SECONDS_EACH=$(or $(SECONDS),60) tests/fuzz/run.sh

bazel: setup  ## libtfctr_ops.so by Bazel (Debian's bazel-bootstrap; see docs/building.md)
	@bazel build --jobs=2 --repo_env=TFCTR_PYTHON=$(abspath $(PY)) //:libtfctr_ops.so

format: build  ## Reformat Python and C++
	@$(PY) -m ruff check --fix-only --quiet .
	@$(PY) -m ruff format .
	@git ls-files 'tfctr/*.cc' 'tfctr/*.h' 'benchmarks/*.cc' 'benchmarks/*.h' | xargs -r .venv/bin/clang-format -i

bench: build  ## All benchmarks against stock TensorFlow; PEERS=1 installs and measures torch and FBGEMM too
	@$(if $(PEERS),tools/setup.sh requirements-bench.txt)
	@set -e; for file in $(filter-out benchmarks/bench_report.py,$(wildcard benchmarks/bench_*.py)); do \
	  name=$$(basename $$file .py); echo "== $$name"; $(PY) -m benchmarks.$$name $(ARGS); \
	done

bench-report: build  ## Effects of every pass, engine and setting on five models, to benchmarks/report.html and .md (ARGS=--quick: 3 minutes)
	@$(PY) -m benchmarks.bench_report --readme $(ARGS)

clean:  ## Remove what was built (not .venv)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache tfctr/core/*.so
