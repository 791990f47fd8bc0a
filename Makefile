# Each target first sets up what it needs (.venv, torch, the tools, the native library).
#   make demo   train a small network with torch_reformer and with PyTorch, side by side
#   make test   run the fast tests, twenty minutes on two idle cores; ARGS="-k conv2d -x" is passed to pytest
#   make test-slow  run the slow tests, three quarters of an hour, except those that CI runs each night
#   make test-all  run all tests, with more random examples
#   make test-gpu  run the tests that need a GPU
#   make build  build the native library and the kernels for this machine's GPUs, in place, or for those in
#               REFORMER_ARCHS="gfx942 sm_90a"
#   make lint   check by ruff, mypy and clang-format;  make format  rewrite by ruff and clang-format
#   make clean  remove everything that was built, except .venv
PYTHON ?= python3
BIN := .venv/bin
LIBRARY := torch_reformer/_C.abi3.so
INSTALLED := .venv/.installed
OTHERS := .venv/.others
# A file whose name holds the value of REFORMER_ARCHS at the last build, since the kernels depend on that variable.
SPACE := $() $()
COMMA := ,
ARCHS := build/archs$(if $(filter undefined,$(origin REFORMER_ARCHS)),,-of-$(subst $(SPACE),-,$(strip $(subst $(COMMA), ,$(REFORMER_ARCHS)))))
CPP_FILES = $(shell find csrc -name '*.h' -o -name '*.cpp')
TABLES = $(shell find csrc -name '*.def' -o -name '*.inc')
KERNEL_FILES = $(shell find csrc/hip -name '*.hip' -o -name '*.py')
FORMATTED = $(CPP_FILES) $(shell find csrc -name '*.hip') $(shell find test/emulator test/hip test/miopen benchmarks -name '*.h' -o -name '*.cpp' -o -name '*.hip')

# Without a GPU the CPU build of torch is installed, which saves several GB of GPU libraries; it comes from PyTorch's own
# index if that can be reached. TORCH=... selects another version.
HAS_GPU := $(shell (nvidia-smi -L || rocm-smi -i || ls /dev/nvidia0 || ls /dev/kfd) 2>/dev/null)
TORCH ?= $(if $(HAS_GPU),torch>=2.11,torch==2.13.0)
CPU_INDEX := https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq

.PHONY: demo test test-slow test-all test-gpu build lint format clean

demo: build
	$(BIN)/python -m torch_reformer.demo $(ARGS)

# Idle workers steal tests from busy ones, so that neighbouring tests of a file, which use the same kernels, mostly run in
# one process.
PYTEST := $(BIN)/python -m pytest -n $(shell nproc 2>/dev/null || echo 1) --dist worksteal

test: build
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: build $(OTHERS)
	$(PYTEST) -m "slow and not nightly" $(ARGS)

test-all: test $(OTHERS)
	REFORMER_EXAMPLES=1 $(PYTEST) -m "slow or hypothesis" $(ARGS)

test-gpu: build
	$(BIN)/python -m pytest -m gpu $(ARGS)

build: $(LIBRARY)

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	@echo "$(BIN)/clang-format --dry-run -Werror csrc test benchmarks"
	@$(BIN)/clang-format --dry-run -Werror $(FORMATTED)

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	@$(BIN)/clang-format -i $(FORMATTED)

clean:
	rm -rf build dist *.egg-info torch_reformer/*.so torch_reformer/kernels .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find csrc torch_reformer test benchmarks -name __pycache__ -prune -exec rm -r {} +

$(INSTALLED): pyproject.toml
	@echo "setting up .venv with $(TORCH) (the first time only; a minute or two)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
	  { rm -rf .venv; echo "$(PYTHON) can't make virtual environments: apt install python3-venv" >&2; exit 1; }
	@$(PIP) --upgrade 'pip>=25.1'
	@$(if $(HAS_GPU),,$(PIP) --retries 0 --no-deps --extra-index-url $(CPU_INDEX) '$(TORCH)' || true)
	@$(PIP) '$(TORCH)' --group dev
	@# Lets scripts in other folders, such as benchmarks/, import the package.
	@$(BIN)/python -c 'import pathlib, sysconfig; print(pathlib.Path.cwd(), file=open(sysconfig.get_path("purelib") + "/torch_reformer.pth", "w"))'
	@touch $@

# Other packages for slow tests, which are skipped without them: their models, clients, and what makes the site of docs/.
# The installed torch is kept.
$(OTHERS): $(INSTALLED)
	@echo "installing other packages: models, clients, mkdocs (the first time only)"
	@$(PIP) "torch==$$($(BIN)/python -c 'import torch; print(torch.__version__)')" --group clients --group docs && \
	  touch $@ || echo "they can't be installed: tests with them will skip" >&2

$(ARCHS):
	@mkdir -p build
	@rm -f build/archs*
	@touch $@

# The folders are prerequisites because their times change if a file is removed. ninja decides which files to compile.
$(LIBRARY): $(INSTALLED) $(ARCHS) setup.py csrc/exports.map $(shell find csrc -type d) $(CPP_FILES) $(TABLES) $(KERNEL_FILES)
	@echo "building $@ (a minute or two the first time); the compiler's words go to build/build.log"
	@mkdir -p build
	@# egg_info contains the entry point by which torch.compile finds the backend.
	@$(BIN)/python setup.py egg_info build_ext --inplace --force >build/build.log 2>&1 || { cat build/build.log >&2; exit 1; }
	@grep -a '^GPU kernels:' build/build.log
	@touch $@
