# make demo and make test need nothing but Python 3.11 or newer.
PYTHON ?= python3
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
CORE = .venv
DEV = .venv-dev

.PHONY: demo test lint format bench recordings clean help

help:  ## show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

demo: $(CORE)/.ready  ## core packages only: policies on a Pareto picture, in demo-out/
	$(CORE)/bin/dspark-sim demo --out demo-out

test: $(DEV)/.ready  ## the default tests (under 5 minutes on 2 cores)
	$(DEV)/bin/python -m pytest

lint: $(DEV)/.ready  ## ruff and mypy --strict
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/mypy

format: $(DEV)/.ready  ## let ruff format and fix
	$(DEV)/bin/ruff format .
	$(DEV)/bin/ruff check --fix .

recordings: $(DEV)/.ready  ## record the shipped drafters again (minutes; CORPORA=folder of prompts)
	for drafter in dspark-markov dflash eagle3; do for t in 1 0; do \
		$(DEV)/bin/dspark-sim drafter record $$drafter --temperature $$t \
			$(if $(CORPORA),--corpora $(CORPORA)) --out traces/tiny-$$drafter-t$$t.parquet || exit 1; \
	done; done

bench: $(DEV)/.ready  ## speed of the simulator on this machine
	$(DEV)/bin/python benchmarks/speed.py

clean:  ## remove environments and outputs
	rm -rf $(CORE) $(DEV) demo-out build dist

$(CORE)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CORE)
	$(CORE)/bin/python $(PIP_INSTALL) --editable .
	@touch $@

$(DEV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEV)
	$(DEV)/bin/python $(PIP_INSTALL) --editable '.[dev,model]'
	@touch $@
