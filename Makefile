# make demo | make test: each sets up what it needs first. PYTHON=... chooses the interpreter, EXTRA=gpu adds CUDA,
# EXTRA="gpu ray" both: those named are there afterwards, and no others.

# A set-up with extras stays one: without this the next `make` would take the CUDA libraries away again.
EXTRA ?= $(subst -, ,$(patsubst .venv/.complete-%,%,$(patsubst .venv/.usable-%,%,$(wildcard .venv/.complete-* .venv/.usable-*))))
EXTRAS := $(subst $() $(),,$(foreach extra,$(sort $(EXTRA)),-$(extra)))
UV_VERSION := 0.13.8
UV := .tools/bin/uv
STAMP := .venv/.complete$(EXTRAS)
# Without the tools of developers; a set-up that has them keeps them.
USABLE := $(or $(wildcard $(STAMP)),.venv/.usable$(EXTRAS))
IS_RIGHT := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))

# The first interpreter that starts (version managers leave names that do not) and is of an allowed version.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3 python; do \
	"$$name" -c '$(IS_RIGHT)' >/dev/null 2>&1 && command -v "$$name" && break; done)

# More processes than cores: many tests wait for others to start or to end. tests/support/stack.py says which run in one process.
# Hundreds of processes import the same sources, so their bytecode is kept, whatever the shell is set to.
PYTEST := PYTHONDONTWRITEBYTECODE= .venv/bin/pytest -n 3 --dist loadgroup --no-loadscope-reorder --reruns 1 --durations=40

export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := .venv
# The machine's certificates, as pip takes them: the proxy of a company has one of its own.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt),)
export UV_SYSTEM_CERTS := true
endif

.PHONY: setup demo test test-all test-quick pytest lint docs chaos bench bench-quick clean

setup: $(STAMP)

# Bytecode is compiled once here: a role imports TensorFlow in 4 s with it and in 14 s without, where Python may not write it.
# Without what nobody imports, a third of all files, which uv would compile too.
NEVER_IMPORTED := -path '*/tests/*' $(foreach part,apprise databricks debugpy fontTools moto setuptools \
	tensorflow_datasets/datasets $(addprefix ray/,data llm rllib serve train tune),-o -path '*/$(part)/*')
$(sort $(STAMP) $(USABLE)): $(UV) pyproject.toml uv.lock
	$(UV) sync --frozen --python "$(PYTHON)" $(if $(filter .venv/.usable%,$@),--no-dev) $(foreach extra,$(EXTRA),--extra $(extra))
	@find .venv/lib -name '*.py' ! \( $(NEVER_IMPORTED) \) -print0 | \
		xargs -0 -n 300 -P 8 .venv/bin/python -m compileall -qq || true  # a package may have a file of another Python
	@rm -f .venv/.complete* .venv/.usable*
	@touch $@

# In a folder of the project's own: nothing is installed for the whole machine.
$(UV): Makefile
	@"$(PYTHON)" -c '$(IS_RIGHT)' 2>/dev/null || { \
		echo "make: PYTHON=$(or $(PYTHON),(none found)) cannot be used: it must be Python 3.11 to 3.13, as in: make setup PYTHON=/usr/bin/python3.11" >&2; exit 2; }
	@"$(PYTHON)" -m pip --version >/dev/null 2>&1 || { \
		echo "make: $(PYTHON) has no pip: install it (Debian and Ubuntu: apt install python3-pip)" >&2; exit 2; }
	rm -rf .tools
	PIP_USER=0 "$(PYTHON)" -m pip install --quiet --root-user-action=ignore --disable-pip-version-check --no-deps --target .tools uv==$(UV_VERSION)
	@touch $@

demo: $(USABLE)
	@.venv/bin/rampline run digits

lint: setup
	$(UV) lock --check --python .venv/bin/python
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/pyright $(TYPED)

# Lint and types beside the tests: about 10 minutes on two cores. Half of the types are those of the tests: test-all has them.
test: setup
	@$(MAKE) --no-print-directory --jobs=2 lint pytest TYPED="rampline flows tasks servers"

# With what takes minutes each: PostgreSQL, pods, cron, servers that go and come back.
test-all: setup
	@$(MAKE) --no-print-directory --jobs=2 lint pytest MARKED=

MARKED := not long
pytest: setup
	$(PYTEST) -m "$(MARKED)"

test-quick: setup
	$(PYTEST) -m unit

# The documents as a site, in site/. The variables turn off advertisements.
docs: setup
	DISABLE_MKDOCS_2_WARNING=true NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet

# Faults in real runs, with what each cost: more than an hour. The two-host cases need root, iproute2 and /dev/net/tun, those of
# jobs Debian's Slurm.
chaos: setup
	RAMPLINE_CHAOS_TABLE=$(or $(TABLE),.chaos-table.json) .venv/bin/pytest tests/chaos --timeout=900 $(ARGS)

# Speed, as ratios: docs/performance.md is written from it. On a machine that does nothing else; ARGS="--only KEY" for a part.
bench: setup
	.venv/bin/python -m benchmarks $(ARGS)

bench-quick: setup
	.venv/bin/python -m benchmarks --quick $(ARGS)

clean:
	rm -rf .chaos-table.json .tools .venv .pytest_cache .ruff_cache dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
