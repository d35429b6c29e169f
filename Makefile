# On a machine with nothing but Python, make and pip: `make test` and `make demo` set everything up, then do their job.
# A second call finds the virtual environment there and starts at once.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-browser lint format bench docs clean

demo: $(READY)
	$(BIN)/unida demo

test: $(READY) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# Installs nothing. Without playwright or a browser, the tests skip, and say what is missing.
test-browser: $(READY)
	UNIDA_BROWSER_TESTS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 tests/browser $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# tail_against_all.py and two_folders.py are apart: they need photos, and tens of minutes.
bench: $(READY)
	for script in data_path step freed_memory evaluation clustering growth two_runs pretext digests memory grid report; do $(BIN)/python benchmarks/$$script.py || exit 1; done
	$(BIN)/python benchmarks/together.py --sizes 10000 100000

# Builds site/ from docs/, and fails on a broken link.
docs: $(VENV)/.docs-ready
	$(BIN)/python tools/docs.py

$(VENV)/.docs-ready: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), 'unida needs Python 3.11 or newer: make PYTHON=python3.11'"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[offline,dev]'
	touch $(READY)

# Not runs/: those are results.
clean:
	rm -rf $(VENV) demo build site
