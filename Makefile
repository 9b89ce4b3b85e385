# make report   set up, verify, measure, and write reports/html/index.html
# make verify   set up, and run every test
# make lint     formatting, lint, types, who imports whom
# make history  measure the last commits (COMMITS=HEAD~2..HEAD) with asv

PYTHON ?= python3
# The release that is tested here. A torch that the machine already has, as on a GPU box, is kept instead.
TORCH ?= torch==2.13.0
COMMITS ?= HEAD~2..HEAD
# Seconds for all backends together.
SECONDS ?= 140

BIN := .venv/bin
SEE_SYSTEM := $(shell $(PYTHON) -c "import torch" 2>/dev/null && echo --system-site-packages)

.PHONY: report verify lint history setup clean

report: setup
	@status=0; \
	$(BIN)/pytest verification/ -q -n auto --hypothesis-profile quick --results reports/data/verification.json || status=$$?; \
	$(BIN)/python -m benchmarks --seconds $(SECONDS) --out reports/data/sweep.json || status=$$?; \
	$(BIN)/python -m reports || status=$$?; \
	exit $$status

verify: setup
	$(BIN)/pytest -q -n auto

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

history: setup
	$(BIN)/python -m benchmarks.machine
	$(BIN)/asv run --skip-existing $(COMMITS)
	$(BIN)/python -m reports

setup: .venv/ready

.venv/ready: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(SEE_SYSTEM) .venv
	@echo "Installing into .venv; the first time this takes a minute or two."
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install --quiet $(TORCH)
	@$(BIN)/python -m pip install --quiet --group dev
	@touch $@

clean:
	rm -rf .venv .asv .hypothesis .pytest_cache .ruff_cache .import_linter_cache reports/data/*.json reports/html
