# Overspill's commands. Everything is cargo and Python 3 underneath; `make help` lists them.

CARGO ?= cargo
PYTHON ?= python3
TARGET = $(abspath $(or $(CARGO_TARGET_DIR),target))

# What is published, in the order in which each needs only those before it. The rest is for the command, or for tests.
PUBLISHED = overspill-vm overspill-swap overspill-store overspill-machine overspill-linux overspill

.PHONY: help demo test bench lint miri soak install-c need-cargo need-cc need-python build

help:
	@echo 'make demo    sort a 330 MB file in half of the memory that sort needs, and show what the pager did'
	@echo 'make test    all tests: the crates, then real programs and suites under Overspill with small inputs; some ten minutes on two cores'
	@echo 'make bench   all measurements beside the kernel'"'"'s own swap (root, three hours); writes bench/RESULTS.md'
	@echo 'make lint    formatting, clippy and the documentation, warnings being errors'
	@echo 'make miri    the unit tests under Miri of what has unsafe code and needs no kernel: locks and the like; needs a nightly Rust'
	@echo 'make install-c    the library for C and C++: headers, liboverspill.so, liboverspill.a and overspill.pc, in PREFIX (/usr/local) under DESTDIR'
	@echo 'make soak    memory testers in a quarter of their memory, SOAK_SECONDS (600) for each of two; then 200 swapoffs under a program with each engine, and 200 under real programs; then test suites and runtimes that others wrote, with and without Overspill (OVERSPILL_LTP: a built copy of the Linux Test Project); then 500 seeds of each scenario of the simulator'

demo: need-python build
	@$(PYTHON) scripts/demo.py

# One build serves all tests: an optimised one with assertions. (`make soak` uses the release build.) The first command builds
# the agent, which `cargo test` does not build. It builds the whole workspace, so that the agent's dependencies get the same
# features as the tests'; otherwise half of them would be built twice. Tests of real programs wait more than they compute, so
# two run for each CPU.
test: export OVERSPILL = $(TARGET)/debug/overspill
test: export RUST_TEST_THREADS ?= $(shell expr 2 '*' $$(nproc))
test: need-python need-cargo need-cc
	@mkdir -p $(TARGET) && date +%s >$(TARGET)/test-began
	@$(call stage,1,building)
	$(CARGO) build --workspace --exclude overspill-bench --all-targets
	$(CARGO) test --workspace --no-run
	@$(call stage,2,the tests of the crates)
	$(CARGO) test --workspace
	@$(call stage,3,the Python package)
	$(PYTHON) scripts/python_tests.py
	@$(call stage,4,real programs)
	$(PYTHON) scripts/programs.py --profile quick --jobs 2
	@$(call stage,5,suites and runtimes that others wrote)
	$(PYTHON) scripts/suites.py --profile quick

stage = echo "make test: $(1) of 5: $(2) (after $$(($$(date +%s) - $$(cat $(TARGET)/test-began))) s)"

bench: need-python build
	$(PYTHON) bench/run.py

lint: need-cargo need-cc
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --workspace --no-deps
	@# whether the published crates can be packed: they name no version that is nowhere, and no file outside of them
	$(CARGO) package --quiet --offline --no-verify --allow-dirty $(PUBLISHED:%=-p %)
	@# the oldest Rust that the manifests promise
	@rust=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml); \
	if rustup run $$rust cargo --version >/dev/null 2>&1; then \
		echo "checking with Rust $$rust"; \
		rustup run $$rust cargo check --workspace --all-targets --target-dir $(TARGET)/msrv; \
	else \
		echo "not checked with Rust $$rust, which is not installed: rustup toolchain install $$rust --profile minimal"; \
	fi
	@# fuzz targets are workspaces of their own; nothing is linked here, so the fuzzer itself need not be built
	for fuzz in fuzz crates/trace/fuzz; do \
		CUSTOM_LIBFUZZER_PATH=/none/libnone.a $(CARGO) clippy --manifest-path $$fuzz/Cargo.toml --target-dir target/fuzz -- -D warnings || exit 1; \
	done

miri: need-cargo
	@rustup run nightly cargo miri --version >/dev/null 2>&1 || { \
		echo 'Miri is not installed: rustup toolchain install nightly --profile minimal --component miri,rust-src'; exit 1; }
	rustup run nightly cargo miri test --target-dir $(TARGET)/miri -p overspill-machine --lib -- rank:: park:: home:: backlog:: copying::

soak: need-python build
	$(PYTHON) scripts/soak.py
	OVERSPILL_SWAPOFFS=400 OVERSPILL_TOUCHES=400 $(CARGO) test --release -p overspill-cli --test command -- --nocapture random_moments thrash
	$(PYTHON) scripts/swapoff_soak.py
	$(PYTHON) scripts/programs.py --profile quick
	$(PYTHON) scripts/suites.py --profile full
	SEEDS=500 $(CARGO) test --release -p overspill-sim --test machine
	OVERSPILL_SEEDS=1000 $(CARGO) test --release -p overspill-cli --test command any_calls -- --nocapture

install-c: PREFIX ?= /usr/local
install-c: need-cargo need-cc
	$(CARGO) build --profile capi -p overspill-capi
	DESTDIR='$(DESTDIR)' crates/capi/install.sh $(TARGET)/capi/liboverspill_capi.a '$(PREFIX)'

build: need-cargo need-cc
	$(CARGO) build --release --workspace

need-cargo:
	@command -v $(CARGO) >/dev/null || { \
		echo 'Overspill is built with cargo, which is not installed: get Rust from https://rustup.rs and try again.'; \
		exit 1; }

need-cc:
	@command -v $${CC:-cc} >/dev/null || { \
		echo 'Parts of Overspill (encryption, zstd, xz) are built with a C compiler, and there is no cc: install gcc or clang and try again.'; \
		exit 1; }

need-python:
	@command -v $(PYTHON) >/dev/null || { \
		echo 'The scripts need Python 3.10 or newer as python3: install it with your package manager and try again.'; \
		exit 1; }
