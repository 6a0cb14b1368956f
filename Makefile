# Every target sets up what it needs in .venv; PYTHON picks the interpreter (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin
OUT ?= runs/quickstart

.PHONY: quickstart quickstart-control test test-slow test-gpu test-soak lint bench bench-app clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

quickstart: .venv/installed  ## train a small search agent on this machine's CPU
	$(BIN)/forage train --preset quickstart --out $(OUT)

quickstart-control: .venv/installed  ## the same with rewards shuffled: must learn nothing
	$(BIN)/forage train --preset quickstart --shuffle-rewards --out $(OUT)-control

test: .venv/installed  ## everything that needs no GPU and takes minutes
	$(BIN)/pytest -m 'not slow and not gpu and not soak'

test-slow: .venv/installed  ## whole training runs
	$(BIN)/pytest -m slow

test-gpu: .venv/installed  ## needs a CUDA GPU
	$(BIN)/pytest -m gpu

test-soak: .venv/installed  ## repeats for a long time
	$(BIN)/pytest -m soak --timeout 3600

lint: .venv/installed  ## style, types, and the floor plan
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/installed  ## speeds, each beside something real in the same run
	for file in bench/*.py; do $(BIN)/python $$file || exit 1; done

bench-app: .venv/installed  ## the runtime beside plain Ray actors
	$(BIN)/python bench/app.py

clean:
	rm -rf .venv runs .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
