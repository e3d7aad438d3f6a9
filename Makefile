# Everything starts from Python 3.11 or newer, git and make: `make demo`, `make test`.
# PYTHON=/path/to/python picks another interpreter for .venv. ARGS= is passed on to the tool.

BIN := .venv/bin
ARGS ?=
# A test takes one thread, so one process a core; each loads torch, so not without end.
PARALLEL := -n auto --maxprocesses 8 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check format docs clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | \
		awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

# The stamps make the second run quick: pip runs again only when pyproject.toml has changed.
.venv/.installed-dev: pyproject.toml scripts/set_up.sh
	@scripts/set_up.sh dev
	@touch $@

.venv/.installed-docs: .venv/.installed-dev
	@scripts/set_up.sh dev docs
	@touch $@

demo: .venv/.installed-dev ## Decode two prompts plainly and speculatively, and compare
	@$(BIN)/paceline demo $(ARGS)

test: .venv/.installed-dev ## Run the tests (quick, offline)
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-all: .venv/.installed-dev ## Run every test, the slow ones and those on real models too
	@$(BIN)/python -m pytest -m "not gpu" $(ARGS)

check: .venv/.installed-docs ## Check format, lint, types, layers and docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: .venv/.installed-dev ## Format the code and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/.installed-docs ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean: ## Remove .venv and everything that was built
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist site
