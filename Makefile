# Everything happens in .venv; outside the project, only `browser` changes anything: it installs Debian's Chromium.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
REFERENCES := .venv/.references

.PHONY: env browser demo test names lint types unit soak zoo elsewhere lowest pythons bench clean

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(wildcard src/learnscope/native/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# what the long tests need: projects that numbers are compared with, a search's backend
$(REFERENCES): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,soak]'
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
	$(BIN)/python bench/tools/table.py --check

types: env
	$(BIN)/mypy -n 2

# The pages are tested in Debian's Chromium. Where it may not be installed these tests are skipped by name; with CI=true
# they fail then.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium; \
		else false; fi >/dev/null 2>&1; } || echo "no Chromium here: the tests of pages are left out"

unit: env browser
	$(BIN)/pytest -n 2 -m "not soak"

soak: env $(REFERENCES)
	$(BIN)/pytest -m soak -n 0
	$(BIN)/python tests/soak.py

# What the findings say of trainings with a planted fault and of healthy ones: docs/diagnosis.md.
zoo: env
	$(BIN)/python tests/zoo/run.py --keep

# As on older processors, with one and with four threads, in random orders: about an hour.
elsewhere: env
	$(BIN)/python tests/elsewhere.py
	$(BIN)/python tests/soak.py

# With the lowest versions that pyproject.toml allows: the tests that need nothing but the mandatory dependencies and
# learnscope[sql], in an environment that has nothing else.
LOWEST := .venv-lowest/bin/python
CORE := $(addprefix tests/,cli comparison core earlier faults findings hostile ledger model/landscape model/weights \
	probes/gradients probes/landscape probes/updates quantities reading report session store tensor)
NOT_CORE := $(addprefix --ignore tests/,hostile/test_guarantees.py report/adapters session/test_frameworks.py \
	cli/test_view.py)

lowest:
	test -x $(LOWEST) || $(PYTHON) -m venv .venv-lowest
	$(LOWEST) -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt -e '.[sql]' \
		'pytest>=8' 'pytest-xdist>=3.6' 'hypothesis>=6.100'
	$(LOWEST) -m pytest -n 2 -m "not soak" $(CORE) $(NOT_CORE)

# With other versions of Python, for which there may be no torch without CUDA: what reads runs and does without torch.
PYTHONS := 3.12 3.13
WITHOUT_TORCH := $(addprefix tests/,earlier store test_intervals.py quantities/test_recorded.py \
	reading/test_changepoints.py reading/test_proportions.py comparison/test_audits.py comparison/test_parting.py \
	comparison/test_table.py findings/features findings/gradients findings/landscape findings/outputs \
	findings/test_audit.py findings/test_sentences.py findings/updates/test_frozen.py findings/updates/test_rates.py \
	findings/updates/test_unchanged_groups.py findings/updates/test_update_quality.py report/audit report/features \
	report/telemetry report/updates report/test_figures.py report/test_other_figures.py report/test_report.py)
# of these folders, the files that train a model
TRAINING := $(addprefix --ignore tests/,findings/gradients/test_lost.py findings/gradients/test_scale_of_the_loss.py \
	findings/outputs/test_broken_data.py store/test_run_folder.py store/test_manifest.py)

pythons: env
	for version in $(PYTHONS); do python=.venv-$$version/bin/python; \
		test -x $$python || python$$version -m venv .venv-$$version || exit 1; \
		$$python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r tests/without_torch.txt && \
		$$python -m pip install --quiet --disable-pip-version-check --no-deps -e . && \
		$$python -m compileall -q src && \
		$(BIN)/mypy -n 2 --python-version $$version && \
		$$python -m pytest -o filterwarnings= -m "not soak" $(WITHOUT_TORCH) $(TRAINING) || exit 1; \
	done

# Goes on after a bound that is missed or a script that fails, and says at the end which these were.
bench: env
	@failed=; \
	for script in bench/*.py; do echo "== $$script"; $(BIN)/python $$script || failed="$$failed $$script"; done; \
	echo "== table"; $(BIN)/python bench/tools/table.py || failed="$$failed bench/tools/table.py"; \
	if [ -n "$$failed" ]; then echo "a bound missed, or an error:$$failed"; exit 1; fi

clean:
	rm -rf .venv .venv-* runs build dist .mypy_cache .ruff_cache .pytest_cache
