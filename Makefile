# The commands a newcomer needs. `make` alone lists them.

PYTHON ?= python3
PY := .venv/bin/python
PYTEST := $(PY) -m pytest
# Container images often set it, and then hundreds of processes compile the same files again.
export PYTHONDONTWRITEBYTECODE :=
# A test that fails beside another one is run again alone, and named; what fails twice fails.
ALONE := $(PYTEST) --last-failed --last-failed-no-failures none
BENCH := $(PY) -m benchmarks
RESULTS := docs/benchmarks
ARMS := alone horovod horovod_by_hand ddp hvd_ext hvd_ext_sharded
DDP_ARMS := alone ddp ddp_backend ddp_hvd_ext fsdp fsdp_hvd_ext
DDP_HOST_ARMS := alone ddp ddp_fp16 ddp_hvd_ext ddp_hvd_ext_bf16

SINGLE := tests/single tests/fuzz
RANKED := $(wildcard tests/parallel tests/cluster tests/gpu)

.PHONY: help env mpis mpi-horovod demo test test-long fuzz sanitize odd-places matrix sweep bench bench-hosts figures check docs wheel site clean

help:  ## list these commands
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /make \1\t/'

env:  ## make or update .venv (MPI=system|embedded, TORCH=VERSION, HOROVOD=SDIST_OR_CHECKOUT|no)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
		echo "make env: error: $(PYTHON) is not Python >= 3.10: apt install python3 python3-venv," \
			"or name one: make env PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) toolchain/make_env.py $(if $(MPI),--mpi $(MPI)) \
		$(if $(TORCH),--torch '$(TORCH)') $(if $(HOROVOD),--horovod '$(HOROVOD)')

mpis: env  ## make .venvs: other MPI libraries for tests (MVAPICH2=ARCHIVE_OR_PREFIX: that too)
	@failed=0; \
	for mpi in openmpi5 mpich5 intelmpi; do \
		$(PYTHON) toolchain/make_env.py --beside $$mpi || failed=1; \
	done; \
	$(if $(MVAPICH2),$(PYTHON) toolchain/make_env.py --beside mvapich2 --from '$(MVAPICH2)' || failed=1;) \
	exit $$failed

mpi-horovod:  ## Horovod built against another MPI: MPI=openmpi5, mpich5, intelmpi or mvapich2
	@$(PYTHON) toolchain/make_env.py
	@$(PYTHON) toolchain/make_env.py --with-horovod --beside '$(MPI)' \
		$(if $(MVAPICH2),--from '$(MVAPICH2)')

demo: env  ## train with Horovod, with hvd_ext and without communication, and print the speedups
	$(PY) -m benchmarks.demo --output runs/demo

test: env  ## run every test that this machine supports, except the long ones
	@failed=0; \
	$(MAKE) --no-print-directory mpis || failed=1; \
	$(PYTEST) -q -n 3 --dist loadfile -m "not long" $(SINGLE) || $(ALONE) $(SINGLE) || failed=1; \
	$(PYTEST) -n 3 --dist loadfile -m "not long" --durations=25 $(RANKED) || $(ALONE) $(RANKED) \
		|| failed=1; \
	exit $$failed

test-long: env  ## run the long tests: trainings, commands of docs, more ranks and MPI libraries
	@failed=0; \
	$(MAKE) --no-print-directory mpis || failed=1; \
	$(PYTEST) -n 2 --dist loadfile -m long --durations=25 tests || $(ALONE) tests || failed=1; \
	$(PY) -m tests.corpus || failed=1; \
	$(PY) -m tests.audit_faults broadcast sample optimizer || failed=1; \
	exit $$failed

fuzz: env  ## try 1,000 damaged and crafted packs, tables, timelines and recordings each
	HVD_EXT_TEST_FUZZ=1000 $(PYTEST) -q -n 2 --timeout 3000 tests/fuzz

sanitize: env  ## run the tests of the C parts with the address, undefined and thread sanitizers
	@$(PY) toolchain/sanitize.py

odd-places: env  ## install where it is hard: not root, a blank in the path, read-only, no network ... (PLACES=, NFS=FOLDER)
	@$(PYTHON) toolchain/odd_places.py $(if $(NFS),--nfs '$(NFS)') $(PLACES)

matrix:  ## install and test with every Python and PyTorch (PYTHONS=, TORCHES=, HOROVODS=, AGAIN=1)
	@$(PYTHON) toolchain/matrix.py $(if $(PYTHONS),--python $(PYTHONS)) \
		$(if $(TORCHES),--torch $(TORCHES)) $(if $(HOROVODS),--horovod $(HOROVODS)) \
		$(if $(AGAIN),--again)

sweep: env  ## more of some tests: messages of more than 2^31 bytes (takes 8 GiB), 20,000 mixed calls, 1,000 epochs
	HVD_EXT_TEST_HUGE=1 $(PY) -m pytest tests/parallel/allreduce/test_allreduce.py tests/parallel/allreduce/test_long.py -k "int_counts or flat"
	HVD_EXT_TEST_SWEEP=1 $(PY) -m pytest tests/parallel/trainers/test_trainers.py tests/parallel/data/test_store.py \
		tests/parallel/trainers/test_mesh_cosmoflow_training.py tests/cluster -k "scale or horovods or epochs"
	HVD_EXT_TEST_SWEEP=5 $(PY) -m pytest tests/single/spatial/test_emulator.py tests/parallel/spatial/test_spatial.py \
		tests/single/spatial/test_models.py tests/parallel/spatial/test_models.py

bench: env  ## measure hvd_ext against Horovod, MPI, Gloo and no communication: docs/benchmarks/*.json
	$(BENCH).gradient_exchange --np 2 --json $(RESULTS)/gradient_exchange_np2.json
	$(BENCH).gradient_exchange --np 4 --json $(RESULTS)/gradient_exchange_np4.json
	$(BENCH).small_tensors --json $(RESULTS)/small_tensors.json
	$(BENCH).overlap --json $(RESULTS)/overlap.json
	$(BENCH).training_step --model resnet50 --model edsr_demo $(ARMS:%=--arm %) \
		--json $(RESULTS)/training_step.json
	$(BENCH).training_step --model resnet50 $(DDP_ARMS:%=--arm %) \
		--json $(RESULTS)/training_step_ddp_np2.json
	$(BENCH).training_step --np 4 --model resnet50 $(DDP_ARMS:%=--arm %) \
		--json $(RESULTS)/training_step_ddp_np4.json
	$(BENCH).spatial_scaling --rounds 3 --json $(RESULTS)/spatial_scaling.json

bench-hosts: env  ## the same between emulated hosts (needs root, ip and tc)
	$(BENCH).collectives --json $(RESULTS)/collectives.json
	$(BENCH).cluster_exchange --hosts 4 --ranks-per-host 1 --json $(RESULTS)/cluster_exchange.json
	$(BENCH).compression --hosts 4 --ranks-per-host 1 --gbit 1 --json $(RESULTS)/compression.json
	$(BENCH).compressed_training --ranks-per-host 1 --gbit 1 --model edsr --steps 120 \
		--json $(RESULTS)/compressed_training_edsr.json
	$(BENCH).compressed_training --ranks-per-host 1 --gbit 1 --model resnet --steps 150 \
		--json $(RESULTS)/compressed_training_resnet.json
	$(BENCH).training_step --hosts 2 --model resnet50 $(DDP_HOST_ARMS:%=--arm %) \
		--json $(RESULTS)/training_step_ddp_hosts2.json
	$(BENCH).training_step --hosts 4 --model resnet50 $(DDP_HOST_ARMS:%=--arm %) \
		--json $(RESULTS)/training_step_ddp_hosts4.json

figures: env  ## write the results of docs/benchmarks/*.json into README and docs
	$(BENCH).figures.write

check: env docs  ## ruff, mypy, the import rules, the words of the text, and the documentation site
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(PYTEST) -q --collect-only tests >/dev/null || $(PYTEST) -q --collect-only tests
	$(PY) -m pytest -q tests/single/test_imports.py tests/single/test_prose.py

wheel:  ## build a wheel and an sdist into dist/
	@$(PYTHON) -m venv build/wheel-env && build/wheel-env/bin/pip install -q build
	build/wheel-env/bin/python -m build --outdir dist .

site:  ## collect hvprof's wheels and their installer in one archive, for a site: dist/hvprof-*.tar.gz
	@$(PYTHON) -m venv build/wheel-env
	@build/wheel-env/bin/python toolchain/site/bundle.py dist

docs: env  ## build the documentation site: build/docs/index.html
	$(PY) -m sphinx -W --keep-going -q -b html docs build/docs

clean:  ## remove the environments and what was built in the checkout
	rm -rf .venv .venv.lock .venvs build *.egg-info
	rm -f profiling/hvprof/recorder/libhvprof.so profiling/hvprof/recorder/hvprof.o
	rm -f profiling/hvprof/recorder/hvprof.ld hvd_ext/*/lib*.so hvd_ext/allreduce/algorithms/libnative.so
