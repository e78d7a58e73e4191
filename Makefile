# SPDX-License-Identifier: Apache-2.0
# The front door. Meson does the work; these are the commands that people type.
BUILD ?= build
MODEL = smollm2-135m

# What the demo asks a model, in how many percent of its file's size, and with which flags.
# --precise: with 8-bit activations (weir's default, and llama.cpp's) SmolLM2's first token is a near tie that comes out wrong.
PROMPT_smollm2-135m = What is the capital of France?
SHARE_smollm2-135m = 60
FLAGS_smollm2-135m = --precise
PROMPT_qwen2.5-coder-0.5b = Write a Python function that reverses a string. Answer with code only.
SHARE_qwen2.5-coder-0.5b = 50
# A base model has no chat template: it goes on with a text, here to the end of the sentence.
PROMPT_gemma3-270m = The planets of the solar system, in order from the sun, are
SHARE_gemma3-270m = 50
FLAGS_gemma3-270m = --raw --stop .
PROMPT ?= $(PROMPT_$(MODEL))

.PHONY: all deps deps-test build demo check check-fast check-full lint install clean goldens compare format

all: deps build

deps:
	@tools/install-deps build

deps-test:
	@tools/install-deps test

build: $(BUILD)/build.ninja
	@ninja -C $(BUILD) --quiet weir

$(BUILD)/build.ninja:
	@meson setup $(BUILD) --buildtype=release >/dev/null

# A real model in 60 or 50 % of its own size: weights stream from the disk, the answer is the same as with all of them in memory.
demo: all
	@model=$$(tools/fetch-models $(MODEL)) && \
	bytes=$$(stat -c %s "$$model") && \
	$(BUILD)/weir run "$$model" "$(PROMPT)" --memory $$((bytes * $(SHARE_$(MODEL)) / 100)) -c 1024 --temp 0 -n 64 $(FLAGS_$(MODEL)) -v --stats

# Every test: unit, kernels, faults, end to end, sanitizers, valgrind, fuzzing, lint.
check: deps deps-test
	@tests/run all

# The same and the tests on the large real models (700 MB to fetch).
check-full: deps deps-test
	@tests/run full

# As check, without sanitizers, valgrind, fuzzing and the slow oracles.
check-fast: deps deps-test
	@tests/run fast

lint:
	@tests/lint/lint

install: all
	@meson install -C $(BUILD) --quiet

format:
	@clang-format -i $$(git ls-files '*.c' '*.h')

# Makes the files of tests/golden that programs of this repository can make. Those of other engines (logprobs-*, tokens-*) came from transformers in
# float32 and from llama.cpp; tests/golden/README.md says how.
goldens: deps deps-test
	@tests/run all setup && WEIR=build-check/weir .venv/bin/python tests/oracle/make-goldens && \
	.venv/bin/python tests/oracle/template_golden.py "$$(tools/fetch-models smollm2-135m)" "$$(tools/fetch-models qwen2.5-coder-0.5b)" tests/golden/templates.json

# weir beside llama.cpp on the same file, under the same memory limit.
compare: all
	@ninja -C $(BUILD) --quiet tests/rawread
	@bench/compare

clean:
	@rm -rf $(BUILD) build-*
