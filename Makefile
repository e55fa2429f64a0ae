# make demo | test | test-long | fuzz | check | bench | docs | clean
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
EXTRAS := data,learning,postgresql,mysql,objects,streams,images,ray,examples,dev

export PIP_DISABLE_PIP_VERSION_CHECK := 1

CASES ?= 10000
SUBJECTS ?=

.PHONY: setup demo test test-long fuzz unit e2e check format bench docs clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Gridmill needs Python 3.11 or newer; set PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

demo: $(READY)
	GRIDMILL_HOME=$${GRIDMILL_HOME:-$(CURDIR)/.gridmill} $(BIN)/gridmill run examples/weather/pipeline.yaml

test: $(READY)
	$(BIN)/pytest tests -m 'not long' -n 4 --dist loadfile --no-loadscope-reorder || { \
		test $$? -eq 1 && echo "What failed while four files ran at a time is tried once more, alone:" && \
		$(BIN)/pytest tests -m 'not long' -x --last-failed --last-failed-no-failures none; }

test-long: $(READY)
	$(BIN)/pytest tests -m long -n 2 --dist loadfile

fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --cases $(CASES) $(SUBJECTS)

unit: $(READY)
	$(BIN)/pytest tests -m 'not e2e and not long'

e2e: $(READY)
	$(BIN)/pytest tests -m 'e2e and not long'

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python -m bench

docs: $(READY)
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv .gridmill site build dist .pytest_cache .mypy_cache .ruff_cache
