# The two commands of the README: `make demo` and `make test`. Both set themselves up.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test cover golden record-golden lint types check mutants faults audit clean

install: .venv/.installed

# Rebuilt whenever what is to be installed changes.
.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "sphereface2 needs Python 3.11 or newer; name one: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: install
	$(BIN)/sphereface2 train quickstart --overwrite
	$(BIN)/sphereface2 evaluate runs/quickstart
	@echo "next, any table of the paper: $(BIN)/sphereface2 reproduce --list"

# One thread per worker: two workers of two threads each would stand in each other's way. A file at a
# time, in the order in which they are collected: by the number of tests, files of few long ones would come last.
SHARED_OUT := -n 2 --dist loadfile --no-loadscope-reorder
# Hundreds of processes are started, each of which would compile the package again.
FOR_TESTS := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

test: install
	$(FOR_TESTS) $(BIN)/python -m pytest $(SHARED_OUT) --ignore tests/golden

# Which lines no test runs, processes that tests start included: a table, and htmlcov/index.html.
cover: install
	$(FOR_TESTS) $(BIN)/python -m pytest $(SHARED_OUT) --ignore tests/golden \
	  --cov --cov-report term:skip-covered --cov-report html

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

check: lint types test golden

# The numbers that users see, to the last digit, before and after a change of the inside.
# Only instructions that every x86-64 processor has, so that all of them round alike: torch, oneDNN, MKL; numpy
# and its OpenBLAS; OpenCV and its IPP; the C library's exp and log. Names that a processor lacks are ignored.
PORTABLE := OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE \
  NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL AVX512_SPR" OPENBLAS_CORETYPE=Nehalem \
  OPENCV_IPP=disabled OPENCV_CPU_DISABLE=AVX,FP16,AVX2,FMA3,AVX512-SKX \
  GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4

golden: install
	$(PORTABLE) $(BIN)/python -m pytest tests/golden

record-golden: install
	$(PORTABLE) $(BIN)/python -m tests.golden.record $(CASES)

# How many small faults the tests catch; e.g. make mutants MUTANTS='heads --sample 50 --seed 3'
mutants: install
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.mutants $(MUTANTS)

# What must never be lost, tried on purpose: hours, resumable; a short selection: make faults FAULTS=--quick
faults: install
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[faults]'
	OMP_NUM_THREADS=1 $(BIN)/python -m faults $(FAULTS)

# Licences, the lock file, an SBOM (dist/sbom.cdx.json), known vulnerabilities if they can be looked up.
audit: install
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[audit]'
	$(BIN)/python -m faults.audit

clean:
	rm -rf .venv .mutants .faults .hypothesis .coverage* htmlcov runs .mypy_cache .ruff_cache .pytest_cache
