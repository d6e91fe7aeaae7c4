# Every target sets up .venv by itself, from the lock files, the first time and when they change.

SHELL := /bin/bash
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq --require-virtualenv
PROJECT := pyproject.toml requirements.lock
# Every package is checked against the hash in its lock file; an sdist would build with packages that are not.
HASHED := --require-hashes --only-binary :all:

# OpenStack Placement, its tests and its clients live apart from the project.
COMPLIANCE := .venv-compliance
# So does Ironic.
IRONIC := .venv-ironic
# And Nova with the services that it needs.
NOVA := .venv-nova
# And what makes the site of docs/.
DOCS := .venv-docs

# And the lowest versions of the requirements, with tests of each surface.
LOWEST := .venv-lowest
LOWEST_TESTS := tests/contract/test_{bring_back,cells,placement}.py tests/unit/test_{boot_command,load,room_figures}.py \
	tests/integration/test_{rest,traces}_embedded.py

# And RabbitMQ 4 with its Erlang and C libraries.
RABBITMQ4 := $(CURDIR)/.rabbitmq4

# What runs on it: `make TESTS=tests/contract/test_rabbit.py test-rabbitmq4` runs one file.
TESTS ?= tests/contract tests/integration

# The Python that makes the virtual environment: `make PYTHON=python3.12 test` overrides the search.
PYTHON ?= $(shell scripts/find-python)

# Tests start hundreds of processes, and where this is set each would compile all of it anew.
export PYTHONDONTWRITEBYTECODE :=

# How many processes run the tests, each with servers of its own: `make JOBS=0 test` runs them in one. On two cores
# three are faster than two, because tests wait for servers.
JOBS ?= 3

.DEFAULT_GOAL := help
.PHONY: help demo test test-rabbitmq4 compliance ironic-test nova-test lowest check lint soak terminations simulate bench bench-beside quality screenshots room-bench docs snippets first-region packages release services lock clean

help: ## say what each target does (the default)
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | column -t -s '|' 2>/dev/null \
		|| sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1: \2/p' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.stamp-demo ## run the demonstration (ARGS="..." for options)
	@$(BIN)/berth demo $(ARGS)

test: $(VENV)/.stamp-dev ## run all tests but the soak ones; installs RabbitMQ, PostgreSQL, MariaDB and Chromium if missing
	@for program in scripts/install-services scripts/install-mariadb scripts/install-browser; do $$program || { status=$$?; \
		[ $$status -eq 3 ] || exit $$status; \
		echo "Going on without: the tests that need it are skipped (and fail where CI is set)."; }; done
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not soak and not ironic and not nova" \
		-o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true $(ARGS)

test-rabbitmq4: $(VENV)/.stamp-dev ## run the tests that use RabbitMQ on Debian 13's RabbitMQ 4 (TESTS="..." for some)
	@scripts/install-services
	@scripts/install-rabbitmq4
	@BERTH_TEST_RABBITMQ=$(RABBITMQ4) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder \
		-m "rabbitmq and not soak and not ironic and not nova" $(TESTS) $(ARGS)

compliance: $(VENV)/.stamp-dev $(COMPLIANCE)/.stamp ## hold it against OpenStack Placement: its tests, its clients, itself
	@scripts/install-services
	@$(COMPLIANCE)/bin/python -m tests.compliance.gabbits $(ARGS)
	@$(COMPLIANCE)/bin/python -m pytest -q -c tests/compliance/pytest.ini tests/compliance

ironic-test: $(VENV)/.stamp-dev $(IRONIC)/.stamp ## drive a real Ironic, and see placement follow
	@scripts/install-services
	@$(BIN)/python -m pytest -q -s -m ironic tests/ironic $(ARGS)

nova-test: $(VENV)/.stamp-dev $(NOVA)/.stamp ## boot and move servers of a real Nova, with OpenStack Placement and with berth
	@scripts/install-services
	@scripts/install-mariadb
	@$(BIN)/python -m pytest -q -s -m nova features/nova $(ARGS)

lowest: $(LOWEST)/.stamp ## run some tests with the lowest versions of the requirements (TESTS="..." for others)
	@$(LOWEST)/bin/python -m pytest -q -m "not services and not soak" \
		$(if $(filter command line,$(origin TESTS)),$(TESTS),$(LOWEST_TESTS)) $(ARGS)

check: $(VENV)/.stamp-dev ## the quick loop: lint, types, import contracts, tests without services
	@scripts/check

lint: $(VENV)/.stamp-dev ## the quick loop without tests
	@scripts/check lint

soak: $(VENV)/.stamp-dev ## run the long tests (minutes)
	@scripts/install-services
	@scripts/install-browser
	@$(BIN)/python -m pytest -m soak $(ARGS)
	@scripts/without-features --every --each

terminations: $(VENV)/.stamp-dev ## boot for two minutes while PostgreSQL ends all connections every second
	@scripts/install-services
	@$(BIN)/python -m pytest -m soak tests/integration/test_terminated_connections.py $(ARGS)

simulate: $(VENV)/.stamp-dev ## simulate thousands of small regions with faults of servers (ARGS="--seeds 0-999", or --help)
	@nice -n 10 $(BIN)/python -m tests.simulation --jobs $(JOBS) --seeds 0-9999 $(ARGS)

bench: $(VENV)/.stamp-dev ## measure everything, beside the recorded run (ARGS="..." for some, or options)
	@scripts/install-services
	@$(BIN)/python -m bench $(ARGS)

bench-beside: $(VENV)/.stamp-dev ## processor time a boot beside earlier commits (COMMIT="39c55bef ..."); fails if 5 % more
	@scripts/install-services
	@$(BIN)/python -m bench.beside $(COMMIT) $(ARGS)

quality: $(VENV)/.stamp-dev ## measure how well berth places, on synthetic traces or given ones (ARGS="--help")
	@$(BIN)/python -m bench.quality $(ARGS)

screenshots: $(VENV)/.stamp-dev ## a picture of each page of the control room, light and dark, wide and narrow
	@scripts/install-browser
	@$(BIN)/python -m tests.browser.screenshots $(ARGS)

docs: $(DOCS)/.stamp ## make the site of docs/ in build/docs; a link that leads nowhere is an error
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs --quiet build --strict $(ARGS)
	@echo "build/docs/index.html"

snippets: $(VENV)/.stamp-dev ## run every command and example of docs/ and the README, also those of minutes
	@scripts/install-services
	@$(BIN)/python -m pytest -q -m "" tests/integration/test_snippets.py $(ARGS)

first-region: packages ## run docs/howto/first-region.md on an empty Debian in build/first-region, and print the times
	@$(BIN)/python -m tests.integration.first_region build/first-region dist/berth-*.whl $(ARGS)

room-bench: $(VENV)/.stamp-dev ## the control room before 10,000 hosts: paints, updates, frames, memory (ARGS="--help")
	@scripts/install-browser
	@$(BIN)/python -m tests.browser.at_size $(ARGS)

packages: $(VENV)/.stamp-dev ## build the wheel and the sdist in dist/, and try them in an empty environment
	@$(BIN)/python scripts/packages dist

release: $(VENV)/.stamp-dev ## build and tag the version of berth/__init__.py; refuses if something is missing
	@$(BIN)/python scripts/release $(ARGS)

services: $(VENV)/.stamp-demo ## start a private RabbitMQ and PostgreSQL, print their URLs, run until Ctrl-C
	@scripts/install-services
	@$(BIN)/python -m deploy.servers $(ARGS)

COMPILE := uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock" --upgrade --generate-hashes

lock: ## pin the dependencies anew (needs uv)
	@$(COMPILE) pyproject.toml --extra build --extra keystone -o requirements.lock
	@$(COMPILE) pyproject.toml --extra build --extra dev -c requirements.lock -o requirements-dev.lock
	@mkdir -p build
	@$(COMPILE) pyproject.toml --extra keystone --extra nova --extra traces --resolution lowest-direct \
		--no-annotate -o build/lowest.txt
	@$(COMPILE) build/lowest.txt --group lowest --no-annotate -o requirements-lowest.lock
	@set -e; for group in compliance ironic nova docs; do \
		$(COMPILE) --group $$group -o requirements-$$group.lock; \
	done

clean: ## remove the virtual environment, caches and build results
	@rm -rf $(VENV) $(COMPLIANCE) $(IRONIC) $(NOVA) $(DOCS) $(LOWEST) $(RABBITMQ4) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What only running needs.
$(VENV)/.stamp-demo: $(PROJECT) | $(BIN)/python
	@echo "Installing the dependencies ..."
	@$(PIP) install $(HASHED) -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

# That and the development tools; the second lock file holds everything in the first.
$(VENV)/.stamp-dev: $(PROJECT) requirements-dev.lock | $(BIN)/python
	@echo "Installing the dependencies and the development tools ..."
	@$(PIP) install $(HASHED) -r requirements-dev.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $(VENV)/.stamp-demo $@

.venv-%/.stamp: requirements-%.lock | $(BIN)/python
	@echo "Installing $(FOR_$*) into .venv-$* ..."
	@$(BIN)/python -m venv --clear .venv-$*
	@.venv-$*/bin/python -m pip --disable-pip-version-check --no-input -qq install \
		$(HASHED) -r requirements-$*.lock
	@touch $@

FOR_compliance := OpenStack Placement, its tests and its clients
FOR_ironic := OpenStack Ironic
FOR_nova := OpenStack Nova with Keystone and Placement
FOR_lowest := the lowest versions of the requirements
FOR_docs := what makes the site of docs/

# Debian's python3 comes without ensurepip; python3-venv has it.
$(BIN)/python:
	@python="$(PYTHON)"; \
	if [ -z "$$python" ]; then \
		echo "berth needs Python 3.11 or newer; none found. Install one or say make PYTHON=/path/to/python" >&2; exit 1; fi; \
	if ! $$python -c 'import ensurepip' >/dev/null 2>&1; then \
		sudo=; [ "$$(id -u)" = 0 ] || sudo="sudo -n"; \
		package=$$($$python -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
		if [ -e /etc/debian_version ] && $$sudo true 2>/dev/null; then \
			echo "Installing $$package with apt-get ..."; \
			{ $$sudo apt-get -qq update && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install $$package; } \
				</dev/null >/dev/null; \
		fi; \
		$$python -c 'import ensurepip' >/dev/null 2>&1 || { \
			echo "$$python cannot make virtual environments: install $$package (Debian, Ubuntu) and try again" >&2; exit 1; }; \
	fi; \
	echo "Making $(VENV) with $$($$python --version) ..."; \
	$$python -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
