# Two commands for everyone: `make run` serves the app, `make test` proves it. Both make .venv on first use.
PYTHON ?= python3
BIN := .venv/bin
PORT ?= 8501
export HF_HUB_DISABLE_TELEMETRY = 1

.PHONY: run test lint screenshots bench clean

run: .venv/runtime
	$(BIN)/streamlit run app.py --server.port $(PORT)

test: .venv/develop  # SLOW=1 adds the proofs that take minutes
	$(BIN)/python -m pytest $(if $(SLOW),,-m "not slow")

lint: .venv/develop
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

screenshots: .venv/develop  # renews the pictures of the README; needs Chromium
	SEQUOIA_SCREENSHOTS=docs/screenshots $(BIN)/python -m pytest tests/e2e

bench: .venv/runtime
	$(BIN)/python -m sequoia_core bench --temperature 0 --max-new-tokens 128

.venv/runtime: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "found $$($(PYTHON) --version), expected Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

.venv/develop: .venv/runtime requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

clean:
	rm -rf .venv .pytest_cache .ruff_cache
