# Each target sets up what it needs in .venv (and in .uv when there is no uv on PATH) and then works offline.
#   make serve ARGS="--port 9000"     make test ARGS="tests/parsers -k stop"     make lock ARGS="--upgrade"
ARGS =
SETUP = sh scripts/setup.sh
BIN = .venv/bin

.PHONY: help serve test check format bench docs lock clean setup-run setup-dev
.DEFAULT_GOAL := help

help:
	@echo "make serve   serve a model on http://127.0.0.1:8000  (ARGS=\"MODEL --port 9000\")"
	@echo "make test    make check, then the tests              (ARGS=\"tests/parsers -k stop\")"
	@echo "make check   formatting, lint, types, import rules"
	@echo "make format  format and mend what can be mended"
	@echo "make bench   measure a server                        (ARGS=\"--help\")"
	@echo "make docs    write the generated pages of docs/"
	@echo "make lock    pin the requirements again              (ARGS=\"--upgrade\")"
	@echo "make clean   remove what the targets made"

serve: setup-run
	@exec $(BIN)/python -m bramley serve $(ARGS)

test: check
	$(BIN)/python -m pytest $(ARGS)

check: setup-dev
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports --no-cache

format: setup-dev
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

bench: setup-dev
	@$(BIN)/python -m bench $(or $(ARGS),run)

docs: setup-dev
	$(BIN)/python -m bramley.config.docs
	$(BIN)/python -m bramley.api.openai.docs

lock:
	@uv=$$($(SETUP) uv) && sh scripts/lock.sh "$$uv" $(ARGS)

clean:
	rm -rf .venv .uv .setup.lock .import_linter_cache .mypy_cache .ruff_cache .hypothesis .cache build dist

setup-run:
	@$(SETUP) run

setup-dev:
	@$(SETUP) dev
