# Everything a person types: make demo, make test. Needs Python 3.11 or newer, git and make; the rest goes into .venv.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
UV := $(VENV)/bin/uv
INSTALLED := $(VENV)/.installed
JOBS ?= 3
EXTRAS := engine metrics s3 wandb tensorboard kubernetes fp8 dev

.DEFAULT_GOAL := help
.PHONY: help install demo check test generate lock

help:
	@echo "make install    put the locked libraries into $(VENV)"
	@echo "make demo       the whole path on a small synthetic video set: train, evaluate, gaps"
	@echo "make check      ruff, mypy, generated files, links and commands of the Markdown"
	@echo "make test       the tests (JOBS=3 processes)"
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

check: install
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -P -m vidqa.generate --check
	$(RUN) -m pytest -q tests/skill tests/test_house_rules.py

# One test file stays in one process, so that what a file prepares once is prepared once; files with slow tests come
# first, as tests/conftest.py says.
test: install
	$(RUN) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 30 --durations-min 5

generate: install
	$(RUN) -P -m vidqa.generate

lock: install
	$(UV) pip compile pyproject.toml $(addprefix --extra ,$(EXTRAS)) --universal --python-version 3.11 \
		--no-header --no-annotate --quiet --upgrade -o requirements.lock
