# Every target sets up what it needs: the environment in .venv is made once, and again when pyproject.toml,
# constraints.txt or the version change.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(shell python3.11 -c 'print("python3.11")' 2>/dev/null || echo python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CONSTRAINTS ?= constraints.txt

# Tests and benchmarks that need data find it here; without it they are skipped and say so.
ifndef BNNDP_DATA
ifneq ($(wildcard ../shared/data/.),)
export BNNDP_DATA := $(abspath ../shared/data)
endif
endif
ifndef BNNDP_BENCHMARKS
ifneq ($(wildcard ../shared/benchmarks/.),)
export BNNDP_BENCHMARKS := $(abspath ../shared/benchmarks)
endif
endif

.PHONY: docs test-all bench-vnncomp bench-floor bench-gpu bench-crown bench-layers bench-widths help setup demo test test-importers check format bench bench-classification tightness campaign campaign-classification campaign-layers campaign-certificates campaign-checker campaign-files campaign-faults campaign-formulas campaign-runs campaign-scale bench-engines seeded-faults mutants reproduce \
  reproduce-quick clean

help:  ## show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)$$/\1\t\2/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r name text; do \
	  printf 'make %-22s %s\n' "$$name" "$$text"; done

$(READY): pyproject.toml constraints.txt src/bnndp/__init__.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) pip hatchling editables
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) --no-build-isolation -e '.[plot,check,onnx]' --group dev
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) --no-deps --group importers || echo 'Some tests of importers will be skipped.'
	@touch $@

setup: $(READY)  ## create .venv and install everything into it

demo: $(READY)  ## certify the embedded network: a table, and the picture bnndp-demo.png
	$(BIN)/bnndp demo

test test-all: export OMP_NUM_THREADS := 1
test: $(READY)  ## run every test but the slow cases, and the examples in docstrings
	$(BIN)/python -m pytest -q --numprocesses auto --maxprocesses 4 -m "not slow" $(ARGS)

test-all: $(READY)  ## run all tests, the slow cases too
	$(BIN)/python -m pytest -q --numprocesses auto --maxprocesses 4 $(ARGS)

.PHONY: coverage
coverage: export OMP_NUM_THREADS := 1
coverage: $(READY)  ## run the tests as make test does, and print which lines and branches of src they miss
	$(BIN)/python -m pytest -q --numprocesses auto --maxprocesses 4 -m "not slow" --cov $(ARGS)

# Beside .venv, not in it: some are large, and torch must stay what it is.
LIBRARIES := $(abspath .cache/importers)

test-importers: export OMP_NUM_THREADS := 1
test-importers: export PYTHONPATH := $(LIBRARIES)
test-importers: $(READY)  ## importers against the libraries themselves, also NumPyro, laplace-torch and posteriors
	[ -d $(LIBRARIES)/numpyro ] || $(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) --no-deps --target $(LIBRARIES) --group importers-large
	$(BIN)/python -m pytest -q tests/importers/test_libraries.py tests/importers/test_*_library.py $(ARGS)

SITE := .cache/docs

docs: export NO_MKDOCS_2_WARNING := 1
docs:  ## the documentation as a site, in the folder site
	[ -x $(SITE)/bin/mkdocs ] || { $(PYTHON) -m venv $(SITE) && $(SITE)/bin/python -m pip install --quiet -c $(CONSTRAINTS) pip && \
	  $(SITE)/bin/python -m pip install --quiet --group docs; }
	$(SITE)/bin/mkdocs build --quiet

check: export OMP_NUM_THREADS := 1
check: $(READY)  ## format, lint, types, import directions, the examples of README and docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_imports.py
	$(BIN)/python tools/run_examples.py

format: $(READY)  ## put all files into the format that check asks for
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

# auto_LiRPA beside the environment, not in it: it asks for an old torch and gets on with ours.
CROWN := .cache/crown

$(CROWN)/auto_LiRPA: benchmarks/requirements-crown.txt | $(READY)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(CROWN) -r $< && touch $@ || echo 'auto_LiRPA does not install: its rows are left out.'

bench: $(READY) $(CROWN)/auto_LiRPA  ## beside sampling, intervals and CROWN; cost, exponents, memory, in one run (below 10 minutes)
	$(BIN)/python -m benchmarks $(ARGS)

bench-crown: $(READY) $(CROWN)/auto_LiRPA  ## networks without variance: time and bounds beside auto_LiRPA's CROWN
	$(BIN)/python -m benchmarks --only crown $(ARGS)

bench-gpu: $(READY)  ## certified radii on a CUDA device beside its measured ceilings (docs/gpu.md)
	$(BIN)/python -m benchmarks.gpu $(ARGS)

bench-vnncomp: export OMP_NUM_THREADS := 1
bench-vnncomp: $(READY)  ## instances of the verification competition: proved, found, beside what is known of them
	$(BIN)/python -m benchmarks.vnncomp $(ARGS)

MODEL = ../shared/posteriors/mnist_2x64_vogn.safetensors
bench-floor: $(READY)  ## radii of MNIST images per second, beside the floor of the matrix products
	$(BIN)/python -m benchmarks.floor $(MODEL) $(ARGS)

bench-classification: $(READY)  ## certified radii and robust decisions beside attacks
	$(BIN)/python -m benchmarks.radii $(ARGS)

bench-layers: $(READY)  ## other activations, posteriors and convolutions: tightness, radii, ensembles
	$(BIN)/python -m benchmarks.layers $(ARGS)

bench-widths: $(READY)  ## regression: certified widths beside the range from inside, by depth, activation and law
	$(BIN)/python -m benchmarks.widths $(ARGS)

bench-engines: export OMP_NUM_THREADS := 1
bench-engines: $(READY)  ## the workers of a Ray cluster on this machine beside one process: images per second
	$(BIN)/python -m benchmarks.engines $(ARGS)

tightness: export OMP_NUM_THREADS := 1
tightness: $(READY)  ## certified against inside, and which step of the proof costs how much of the gap
	$(BIN)/python -m benchmarks.tightness $(ARGS)

campaign: $(READY)  ## attack thousands of random networks: no bound may be broken
	$(BIN)/python -m benchmarks.fuzz.regression $(ARGS)

campaign-classification: $(READY)  ## the same for classifiers
	$(BIN)/python -m benchmarks.fuzz.classification $(ARGS)

campaign-layers: export OMP_NUM_THREADS := 1
campaign-layers: $(READY)  ## the same for networks of every kind of layer and posterior
	$(BIN)/python -m benchmarks.fuzz.layers $(ARGS)

campaign-certificates: export OMP_NUM_THREADS := 1
campaign-certificates: $(READY)  ## genuine certificates of every kind are accepted, tampered ones never
	$(BIN)/python -m benchmarks.fuzz.certificates $(ARGS)

campaign-checker: export OMP_NUM_THREADS := 1
campaign-checker: $(READY)  ## attack the checker: changed certificates must not prove more than is true
	$(BIN)/python -m benchmarks.fuzz.checker $(ARGS)

campaign-runs: export OMP_NUM_THREADS := 1
campaign-runs: $(READY)  ## kill a long run 200 times, tear its journal: it must end as if nothing had been
	$(BIN)/python -m benchmarks.fuzz.runs $(ARGS)

campaign-scale: export OMP_NUM_THREADS := 1
campaign-scale: $(READY)  ## 100,000 boxes beside 10,000: the time is linear, memory flat, every format whole
	$(BIN)/python -m benchmarks.fuzz.scale $(ARGS)

campaign-files: export OMP_NUM_THREADS := 1
campaign-files: $(READY)  ## malformed and malicious model files: nothing runs, one clear line each
	$(BIN)/python -m benchmarks.fuzz.files $(ARGS)

campaign-faults: export OMP_NUM_THREADS := 1
campaign-faults: $(READY)  ## errors, NaN and interrupts in every function: no false claim is certified; hostile numbers
	$(BIN)/python -m benchmarks.fuzz.faults $(ARGS)
	$(BIN)/python -O -W error -m benchmarks.fuzz.faults --claims 1 $(ARGS)
	$(BIN)/python -m pytest -q tests/faults tests/benchmarks/fuzz/test_faults.py

campaign-formulas: export OMP_NUM_THREADS := 1
campaign-formulas: $(READY)  ## every closed formula that bounds rest on against ball arithmetic, at random points
	$(BIN)/python -m benchmarks.fuzz.formulas $(ARGS)

seeded-faults: $(READY)  ## put known soundness faults into a copy, one at a time: its tests must fail
	$(BIN)/python -m benchmarks.fuzz.seeded_faults $(ARGS)

mutants: $(READY)  ## the same with random mutants of maths, engine, paper and the checker, six of each module
	$(BIN)/python -m benchmarks.fuzz.seeded_faults --mutants 6 $(ARGS)

REPRODUCE = $(BIN)/python -m benchmarks.paper
REPRODUCED = --baselines --cache .cache/networks

reproduce: $(READY)  ## the paper's tables and figures beside ours, into docs/results (two to three hours)
	for name in table-1a table-1b table-2 figure-1 figure-3; do \
	  $(REPRODUCE) $$name $(REPRODUCED) --out docs/results $(ARGS) || exit; done

reproduce-quick: $(READY)  ## the same for layers of 64 and 10 inputs, into reproduction/ (below 10 minutes)
	$(REPRODUCE) table-1b --quick $(REPRODUCED) --out reproduction $(ARGS) & \
	for name in table-1a figure-3 figure-1; do \
	  $(REPRODUCE) $$name --quick $(REPRODUCED) --out reproduction $(ARGS) || { wait; exit 1; }; done; \
	wait $$!

clean:  ## remove .venv and all caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
	find src tests benchmarks support tools -name __pycache__ -type d -prune -exec rm -rf {} +
