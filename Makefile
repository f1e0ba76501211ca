# Two commands do everything on a fresh machine: `make train` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: train test paper lint types coverage docs clean

train: $(STAMP)
	$(BIN)/riskppo train experiment=hopper $(ARGS)

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/python -m mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

# every experiment, many hours; goes on where it stopped
paper: $(STAMP)
	$(BIN)/python experiments/run.py $(ARGS)
	$(BIN)/python experiments/utilities.py
	$(BIN)/python experiments/study.py
	$(BIN)/python experiments/transfer.py
	$(BIN)/python experiments/noise.py
	$(BIN)/python experiments/reach.py
	$(BIN)/python experiments/check.py --write

# one part of it: `make paper-velocity`, `make paper-study`, ...; `make paper-check` says which claims hold
paper-%: $(STAMP)
	$(BIN)/python experiments/$(if $(wildcard experiments/$*.py),$*.py,run.py $*) $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/python -m mypy

coverage: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov=riskppo_jax --cov-report=term-missing:skip-covered $(ARGS)

# into site/; pictures and benchmark tables are made first
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	$(BIN)/python docs/make.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# Done once, and again only when the dependencies change.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python >= 3.11 is needed; set PYTHON=..."'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) build *.egg-info
