# make demo | test | test-long | fuzz | soak | unit-all | check | bench | docs | clean
PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/python -m
READY := .venv/.ready
EXTRAS := data,learning,postgresql,mysql,objects,aws,gcp,streams,images,ray,examples,dev

export PIP_DISABLE_PIP_VERSION_CHECK := 1

CASES ?= 10000
SUBJECTS ?=

.PHONY: setup demo test test-long fuzz soak unit unit-all e2e check format bench docs clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Gridmill needs Python 3.11 or newer; set PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(RUN) pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

demo: $(READY)
	GRIDMILL_HOME="$${GRIDMILL_HOME:-$(CURDIR)/.gridmill}" $(RUN) gridmill run examples/weather/pipeline.yaml

test: $(READY)
	$(RUN) pytest tests -m 'not long and not soak' -n 4 --dist loadfile --no-loadscope-reorder

test-long: $(READY)
	$(RUN) pytest tests -m 'long and not soak' -n 4 --dist loadfile --no-loadscope-reorder
	$(RUN) pytest tests/e2e/test_serving_soak.py

fuzz: $(READY)
	$(RUN) tests.fuzz --cases $(CASES) $(SUBJECTS)

soak: $(READY)
	GRIDMILL_SOAK_SECONDS=$${GRIDMILL_SOAK_SECONDS:-3600} $(RUN) pytest tests -m soak

unit: $(READY)
	$(RUN) pytest tests -m 'not e2e and not long and not soak'

unit-all: $(READY)
	$(RUN) tests.versions $(EXTRAS)

e2e: $(READY)
	$(RUN) pytest tests -m 'e2e and not long and not soak'

check: $(READY)
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(BIN)/lint-imports

format: $(READY)
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

bench: $(READY)
	$(RUN) bench

docs: $(READY)
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict

clean:
	rm -rf .venv .venv-3.* .gridmill site build dist .pytest_cache .mypy_cache .ruff_cache
