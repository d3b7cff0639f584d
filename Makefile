# Everything happens in .venv; nothing outside the project is changed.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
REFERENCES := .venv/.references

.PHONY: env demo test names lint types unit soak bench clean

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# what numbers are compared with in the long tests
$(REFERENCES): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,references]'
	touch $@

demo: env
	$(BIN)/learnscope demo --out runs/demo

test: lint types unit

names: env
	$(BIN)/python scripts/write_names.py

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/write_names.py --check

types: env
	$(BIN)/mypy -n 2

unit: env
	$(BIN)/pytest -n 2 -m "not soak"

soak: env $(REFERENCES)
	$(BIN)/pytest -m soak -n 0

bench: env
	for claim in bench/*.py; do echo "== $$claim"; $(BIN)/python $$claim || exit 1; done

clean:
	rm -rf .venv runs build dist .mypy_cache .ruff_cache .pytest_cache
