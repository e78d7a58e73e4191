# SPDX-License-Identifier: Apache-2.0
# The front door. Meson does the work; these are the commands that people type.
BUILD ?= build
PREFIX ?= /usr/local
MODEL = smollm2-135m

# What the demo asks a model, in how many percent of its file's size, and with which flags.
# --precise: with 8-bit activations (weir's default, and llama.cpp's) SmolLM2's first token is a near tie that comes out wrong.
PROMPT_smollm2-135m = What is the capital of France?
SHARE_smollm2-135m = 60
FLAGS_smollm2-135m = --precise
GO_ON_smollm2-135m = chat smollm2-135m --precise
PROMPT_qwen2.5-coder-0.5b = Write a Python function that reverses a string. Answer with code only.
SHARE_qwen2.5-coder-0.5b = 50
GO_ON_qwen2.5-coder-0.5b = chat qwen2.5-coder-0.5b
# A base model has no chat template: it goes on with a text, here to the end of the sentence.
PROMPT_gemma3-270m = The planets of the solar system, in order from the sun, are
SHARE_gemma3-270m = 50
FLAGS_gemma3-270m = --raw --stop .
GO_ON_gemma3-270m = run gemma3-270m --raw 'Once upon a time' -n 64
PROMPT ?= $(PROMPT_$(MODEL))

.PHONY: all deps deps-test build demo check check-fast check-full lint install uninstall clean goldens compare figures format help
.NOTPARALLEL:

all: deps build ## (the default) installs what is missing and builds $(BUILD)/weir

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | sed 's|$$(BUILD)|$(BUILD)|' | expand -t 14

deps: ## installs what the build needs (Debian, as root or with sudo)
	@tools/install-deps build

deps-test: ## installs what the tests need
	@tools/install-deps test

# First what Meson wrote, in silence; then, unless a dry run says that there is nothing to do, the programs.
define ninja
@ninja -C $(BUILD) build.ninja >$(BUILD)/meson.txt || { cat $(BUILD)/meson.txt >&2; exit 1; }
@ninja -C $(BUILD) -n $(1) | grep -q 'no work to do' || { echo "building in $(BUILD) (a minute the first time) ..." >&2; ninja -C $(BUILD) --quiet $(1); }
endef

build: $(BUILD)/build.ninja ## builds $(BUILD)/weir
	$(call ninja,weir)

# lib: Meson may choose lib64, where neither pkg-config nor the dynamic linker of a Debian looks.
$(BUILD)/build.ninja:
	@meson setup $(BUILD) --buildtype=release --prefix="$(PREFIX)" --libdir=lib >/dev/null

# A real model in 60 or 50 % of its own size: weights stream from the disk, the answer is the same as with all of them in memory.
demo: all ## fetches a model and lets it answer in a part of its size: MODEL=, PROMPT=
	@model=$$(tools/fetch-models $(MODEL)) && \
	bytes=$$(stat -c %s "$$model") && \
	printf '> %s\n' "$(PROMPT)" && \
	$(BUILD)/weir run "$$model" "$(PROMPT)" --memory $$((bytes * $(SHARE_$(MODEL)) / 100)) -c 1024 --temp 0 -n 64 $(FLAGS_$(MODEL)) --stats && \
	echo "the command is $(BUILD)/weir ('make install' for all users); go on with: $(BUILD)/weir $(GO_ON_$(MODEL))" >&2

# Unit, kernels, faults, end to end, sanitizers, valgrind, fuzzing, lint.
check: deps deps-test ## runs every test (takes long)
	@tests/run all

check-full: deps deps-test ## the same and the tests on the large real models (700 MB to fetch)
	@tests/run full

check-fast: deps deps-test ## as check, without sanitizers, valgrind, fuzzing and the slow oracles
	@tests/run fast

lint: ## the conventions
	@tests/lint/lint

# No rebuild: that would build the tests too.
install: all ## installs command, library, header, pkg-config file and documents: PREFIX=, DESTDIR=
	@meson configure $(BUILD) --prefix="$(PREFIX)" --libdir=lib >/dev/null
	$(call ninja,installed)
	@meson install -C $(BUILD) --quiet --no-rebuild >$(BUILD)/install.txt 2>&1 || { grep '^[A-Za-z]*Error: ' $(BUILD)/install.txt >&2 || cat $(BUILD)/install.txt >&2; \
	echo "not installed in $(DESTDIR)$(PREFIX): install as root, or in a folder of yours, such as PREFIX=$$HOME/w" >&2; exit 1; }
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi
	@echo "installed in $(DESTDIR)$(PREFIX): bin/weir, lib/libweir.so, lib/libweir.a, include/weir/, lib/pkgconfig/weir.pc, share/doc/weir/"

uninstall: ## removes what the last 'make install' installed
	@[ -f $(BUILD)/build.ninja ] || { echo "uninstall: there is no $(BUILD), which knows what was installed: 'make install' as then, and again" >&2; exit 1; }
	@ninja -C $(BUILD) --quiet uninstall >$(BUILD)/uninstall.txt 2>&1 || { cat $(BUILD)/uninstall.txt >&2; exit 1; }
	@sed -n '/No such file/d; s|^Deleted: /|removed /|p; s/^Could not delete /not removed: /p' $(BUILD)/uninstall.txt | grep . || \
	echo "what the last 'make install' installed is no longer there"

format: ## clang-format
	@clang-format -i $$(git ls-files '*.c' '*.h')

# Makes the files of tests/golden that programs of this repository can make. Those of other engines (logprobs-*, tokens-*) came from transformers in
# float32 and from llama.cpp; tests/golden/README.md says how.
goldens: deps deps-test ## makes the files of tests/golden that this repository can make
	@tests/run all setup && WEIR=build-check/weir .venv/bin/python tests/oracle/make-goldens && \
	.venv/bin/python tests/oracle/template_golden.py "$$(tools/fetch-models smollm2-135m)" "$$(tools/fetch-models qwen2.5-coder-0.5b)" tests/golden/templates.json

# weir beside llama.cpp on the same file: in memory, and under the same memory limit.
compare: all ## measures weir beside llama.cpp, half an hour (root); the rows go to bench/results.tsv
	@tools/install-deps compare
	@ninja -C $(BUILD) --quiet tests/rawread
	@bench/compare --in-core
	@bench/compare

figures: ## writes the numbers of bench/results.tsv where README and docs quote them, and draws the pictures
	@bench/figures

clean: ## removes the build folders
	@rm -rf $(BUILD) build-*
