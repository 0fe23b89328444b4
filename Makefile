# The two commands of this project are `make demo` and `make test`; both work in a fresh clone.
# Everything goes into .venv/ (and labextension/node_modules/); .venv/.stamps/ remembers what is done.

# Which torch to install when .venv has none yet.
TORCH ?= torch==2.13.0
# The Python that makes .venv; found when empty.
PYTHON ?=
# More arguments for pytest (`make test PYTEST="-k horovod"`) and for `jupyter lab`.
PYTEST ?=
LAB ?=
# Which benchmarks (all when empty), and how many turns (their own number).
ONLY ?=
TURNS ?=
# Keep what was measured: the results page of the benchmarks.
WRITE ?=
# The release of Debian of `make test-python`.
SUITE ?= trixie

VENV := .venv
STAMPS := $(VENV)/.stamps
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input install
STEP := .ci/step
BUNDLE := distdl_jupyter/labextension/static/style.js
MODULES := labextension/node_modules/.installed
# What the front end is built from. The checks write schema.ts, and no build reads it.
FRONT_END := $(shell find labextension -name node_modules -prune -o -name schema.ts -o -type f -print) \
	$(wildcard distdl_jupyter/locale/*/LC_MESSAGES/*.po)
WHEEL := dist/.built
SOURCES := $(shell find distdl_jupyter -name __pycache__ -prune -o -path distdl_jupyter/labextension -prune \
	-o -path 'distdl_jupyter/locale/*.json' -o -type f -print) pyproject.toml README.md LICENSE
SITE := docs/_build/html
GALLERY := tests/artifacts/gallery
NOTEBOOK := notebooks/quickstart.ipynb

# Without compiled files each of many processes would compile what it imports anew.
unexport PYTHONDONTWRITEBYTECODE
# The front end is built here, with its time shown, and not a second time inside pip.
export HATCH_JUPYTER_BUILDER_SKIP_NPM := 1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-faults test-python lab bench lint schema docs docs-serve pictures build wheel clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(STAMPS)/horovod ## Train a network with Horovod on 2 processes, from a notebook
	@$(PY) notebooks/run.py $(NOTEBOOK)

lab: $(STAMPS)/horovod ## Open the same notebook in JupyterLab
	@$(VENV)/bin/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) \
		--notebook-dir=$(dir $(NOTEBOOK)) --LabApp.default_url=/lab/tree/$(notdir $(NOTEBOOK)) $(LAB)

test: $(STAMPS)/horovod $(STAMPS)/test $(WHEEL) ## Run every check and the quick selection of the tests
	@.ci/test $(PYTEST)

test-all: $(STAMPS)/horovod $(STAMPS)/test $(WHEEL) ## Run all tests, warm and cold, and write docs/tested/all.md
	@.ci/test-all $(PYTEST)

test-faults: $(STAMPS)/horovod $(STAMPS)/test $(WHEEL) ## Inject every fault, also the long ones, and write tests/faults/RESULTS.md
	@.ci/test-faults $(PYTEST)

test-python: $(BUNDLE) ## Run quick tests with the Python of another Debian, as root (SUITE=trixie or SUITE=forky)
	@TORCH="$(TORCH)" .ci/test-python $(SUITE) $(PYTEST)

lint: $(STAMPS)/test $(MODULES) ## Check style, types and the layers of the packages
	@.ci/lint

bench: $(STAMPS)/horovod $(STAMPS)/test ## Measure, as ratios against other launchers (ONLY="name ..." a part, WRITE=1 into RESULTS.md)
	@$(PY) -m tests.benchmarks.results $(if $(WRITE),--write) $(if $(TURNS),--turns=$(TURNS)) $(ONLY)

schema: $(STAMPS)/package $(MODULES) ## Write the pages' TypeScript types of the HTTP API (make lint does it too)
	@npm --prefix labextension run --silent schema

docs: $(STAMPS)/horovod $(STAMPS)/docs ## Build the site in docs/_build/html (some of its notebooks run first, when they changed)
	@$(STEP) "Building the site" $(PY) -m sphinx -W --keep-going -q -b html docs $(SITE)
	@printf 'The site: %s\n' "$(SITE)/index.html"

pictures: $(STAMPS)/horovod $(STAMPS)/test $(WHEEL) ## Make the pictures of README and of the site anew, from real jobs in JupyterLab
	@rm -rf $(GALLERY)
	@DISTDL_TESTS=all $(PY) -m pytest -n0 -q tests/browser/test_gallery.py tests/browser/test_machines.py
	@cp $(GALLERY)/* notebooks/images/

docs-serve: docs ## Build the site and serve it on this machine
	@$(PY) -m http.server --bind 127.0.0.1 --directory $(SITE) 8000

build: $(BUNDLE) ## Build the front end: the panels and the JupyterLab extension

wheel: $(WHEEL) ## Build the wheel, in dist/

clean: ## Remove all that the other targets made here (built Horovod wheels stay in the user cache)
	rm -rf $(VENV) dist docs/_build docs/_static/jobs docs/_static/widgets.css docs/notebooks docs/reference labextension/node_modules labextension/src/api/schema.ts distdl_jupyter/locale/*/*/*.json distdl_jupyter/labextension tests/artifacts .hypothesis .*_cache
	find distdl_jupyter docs tests notebooks -name __pycache__ -prune -exec rm -rf {} +

$(STAMPS)/prerequisites:
	@python=$$(.ci/prerequisites "$(PYTHON)") && mkdir -p $(STAMPS) && printf '%s\n' "$$python" >$@

$(STAMPS)/venv: | $(STAMPS)/prerequisites
	@test -x $(PY) || $(STEP) "Making $(VENV)" "$$(cat $(STAMPS)/prerequisites)" -m venv $(VENV)
	@touch $@

# First and alone: the index's newest torch brings several GB of CUDA.
$(STAMPS)/torch: | $(STAMPS)/venv
	@$(PY) -c 'from importlib.metadata import version; version("torch")' 2>/dev/null || \
		$(STEP) "Installing $(TORCH)" $(PIP) $(TORCH)
	@touch $@

$(MODULES): labextension/package.json labextension/package-lock.json | $(STAMPS)/prerequisites
	@$(STEP) "Installing the front end's tools" npm --prefix labextension ci --no-audit --no-fund --loglevel=error
	@touch $@

$(BUNDLE): $(FRONT_END) $(MODULES)
	@$(STEP) "Building the front end" npm --prefix labextension run --silent build
	@touch $@

# An older pip gives up on the packages of Azure and OpenTelemetry, which pin each other.
$(STAMPS)/package: pyproject.toml | $(STAMPS)/torch $(BUNDLE)
	@$(PY) -c 'import sys; from importlib.metadata import version; sys.exit(int(version("pip").split(".")[0]) < 25)' || \
		$(STEP) "Updating pip" $(PIP) --upgrade pip
	@$(STEP) "Installing distdl_jupyter" $(PIP) -e '.[torch,mpi,demo]'
	@.ci/develop $(VENV)
	@touch $@

# After torch, whose release it belongs to.
$(STAMPS)/torchvision: $(wildcard $(VENV)/lib/python3*/site-packages/torch/version.py) | $(STAMPS)/package
	@$(STEP) "Installing torchvision" $(PY) .ci/torchvision
	@touch $@

$(STAMPS)/test: $(STAMPS)/package $(STAMPS)/torchvision
	@$(STEP) "Installing what the tests need" $(PIP) -e '.[test]'
	@touch $@

$(STAMPS)/docs: $(STAMPS)/package $(STAMPS)/torchvision
	@$(STEP) "Installing what the site needs" $(PIP) -e '.[docs]'
	@touch $@

# The one wheel that the tests install; its front end is built anew, because a watching build leaves source maps.
$(WHEEL): $(SOURCES) $(FRONT_END) | $(MODULES) $(STAMPS)/test
	@$(STEP) "Building the wheel" .ci/wheel $(PY)
	@touch $@

# Again when torch was replaced; its file is not there yet when the first run reads this.
$(STAMPS)/horovod: $(STAMPS)/package $(wildcard $(VENV)/lib/python3*/site-packages/torch/version.py)
	@$(VENV)/bin/distdl install horovod
	@touch $@
