# Every target works from a fresh clone: it makes .venv and installs the pinned lock file first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONFIG := deploy/runs/demo.toml

.PHONY: install demo test soak check bench s3 lock clean

install: $(VENV)/.installed

$(VENV)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "clozeline needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

demo: install
	$(BIN)/python -m pipeline run --config $(CONFIG)
	$(BIN)/python -m trainer run --config $(CONFIG)

test: install
	$(BIN)/python -m pytest

# Ten faults in a row (needs the right to mount a small file system), drained and added nodes.
soak: install
	$(BIN)/python -m pytest -m soak -s

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: install
	set -e; for file in tests/benchmarks/[!_]*.py; do \
		name=$$(basename $$file .py); [ $$name = harness ] || $(BIN)/python -m tests.benchmarks.$$name; \
	done

# A real S3 server in the foreground; give the lines it prints to another terminal.
s3: install
	$(BIN)/python -m tests.s3_server

# Torch brings its CUDA libraries itself, pinned by its own metadata, or none in a CPU build.
CUDA := triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti \
	nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile \
	nvidia-curand nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 \
	nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx

lock: install
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 \
		--no-header --no-annotate --quiet $(CUDA:%=--no-emit-package %) --output-file requirements.lock

clean:
	rm -rf runs build
