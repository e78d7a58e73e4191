# SPDX-License-Identifier: Apache-2.0
"""Promise P2: the logits do not depend on budget, threads, I/O engine, ring, chunk or CPU level; nor does a sampled text."""
import ctypes
import functools
import itertools
import json
import os

import numpy as np
import pytest
import tiny_model
from command import GOLDEN, weir_json

FACTORS = {
    "share": ("least", 0.5, 0.75, 1),  # of the weights that are pinned
    "threads": (1, 2, 3),
    "io": ("uring", "pread"),
    "direct": ("auto", "off"),
    "chunk": (1, 7, 64, 512),
}


def covering(factors):
    """Combinations such that every two values of two factors meet in one: greedily, the one with most new pairs first."""
    def pairs(row):
        return set(itertools.combinations(zip(factors, row), 2))

    rows = list(itertools.product(*factors.values()))
    missing = set().union(*map(pairs, rows))
    while missing:
        best = max(rows, key=lambda row: len(pairs(row) & missing))
        missing -= pairs(best)
        yield dict(zip(factors, best))


def test_covering():
    rows = list(covering(FACTORS))
    for (a, xs), (b, ys) in itertools.combinations(FACTORS.items(), 2):
        for x, y in itertools.product(xs, ys):
            assert any(row[a] == x and row[b] == y for row in rows), (a, x, b, y)
    assert len(rows) < 30


def flags_of(row, model, context, *more):
    """The command's flags for a combination, and whether weights must then be streamed."""
    flags = ["-t", row["threads"], "--io", row["io"], "--direct", row["direct"], "--chunk", row["chunk"], "-c", context, *more]
    if row["share"] == "least":
        flags += ["--pin", 0]
        flags += ["--memory", weir_json("plan", model, *flags)["min_budget"]]
    elif row["share"] != 1:
        weights = weir_json("plan", model, *flags)["weight_bytes"]
        flags += ["--memory", "2G", "--pin", int(row["share"] * weights)]
    return flags


class Evaluator:
    """Evaluates prefixes of one list of ids and compares their logits, bit for bit, with the longest run so far."""

    def __init__(self, model, ids, context, folder):
        self.model, self.ids, self.context, self.folder = model, ids, context, folder
        self.reference = None
        self.nll = {}

    def run(self, n, flags, env=None):
        (self.folder / "ids.json").write_text(json.dumps(self.ids[:n]))
        out = self.folder / "out.npy"
        done = weir_json("eval", self.model, "--ids", self.folder / "ids.json", "--logits", out, *flags, env=env)
        logits = np.load(out).view(np.uint32)
        assert logits.shape[0] == n == done["n_tokens"]
        return done, logits

    def compare(self, n, flags, env=None):
        done, logits = self.run(n, flags, env)
        if self.reference is None:
            self.reference = logits
        same = (logits == self.reference[:n]).all(axis=1)
        assert same.all(), f"{(~same).sum()} of {n} rows differ, the first is {same.argmin()}: {' '.join(map(str, flags))} {env}"
        assert done["nll"] == self.nll.setdefault(n, done["nll"]), (n, flags, env)
        return done


@functools.cache
def uring_available():
    """Whether this system gives out rings: asked of the kernel itself, so that a fallback of weir cannot hide behind its own word."""
    libc = ctypes.CDLL(None, use_errno=True)
    ring = libc.syscall(ctypes.c_long(425), ctypes.c_uint(4), ctypes.create_string_buffer(120))  # io_uring_setup, struct io_uring_params
    if ring >= 0:
        os.close(ring)
    return ring >= 0


def engine_of(row):
    return row["io"] if uring_available() else "pread"


def check_rows(evaluator, rows, levels, length, *more):
    for row in rows:
        done = evaluator.compare(length(row), flags_of(row, evaluator.model, evaluator.context, *more), {"WEIR_CPU": row["level"]})
        assert done["isa"] == row["level"] and done["threads"] == row["threads"]
        assert (done["residency"]["streamed"] > 0) == (row["share"] != 1), row
        assert done["io"]["engine"] == engine_of(row), (row, done["io"], done["warnings"])
    assert {row["level"] for row in rows} == set(levels)


@pytest.mark.parametrize("arch, kind, full, more", [
    ("llama", "Q4_0", False, ()), ("llama", "Q8_0", True, ("--kv", "f32")), ("llama", "Q4_1", False, ("--precise",)), ("llama", "F32", True, ()),
    ("qwen2", "Q8_0", False, ()), ("qwen2", "Q4_0", True, ("--precise",)), ("gemma3", "Q8_0", False, ()), ("gemma3", "Q4_1", True, ("--kv", "f32")),
    ("llama", "Q4_0", True, ("--kv", "q8_0")), ("qwen2", "F32", False, ("--kv", "q8_0")), ("gemma3", "Q8_0", True, ("--kv", "q8_0")),
    ("llama", "Q8_0", False, ("--kv", "k8v4")), ("qwen2", "Q4_0", True, ("--kv", "k8v4")), ("gemma3", "Q4_1", False, ("--kv", "k8v4")),
])
def test_e1_tiny(tmp_path, levels, say, arch, kind, full, more):
    """300 positions of a small model with 4 KiB extents, so that rows straddle them and slots are reused many times."""
    model = tiny_model.write(tmp_path / "tiny.gguf", kind, full, arch=arch)
    ids = np.random.RandomState(3).randint(1, len(tiny_model.tokens()), size=300).tolist()
    evaluator = Evaluator(model, ids, 304, tmp_path)
    evaluator.compare(300, flags_of({"share": 1, "threads": 1, "io": "pread", "direct": "off", "chunk": 512}, model, 304, *more), {"WEIR_CPU": "scalar"})
    rows = list(covering({**FACTORS, "level": levels}))
    check_rows(evaluator, rows, levels, lambda row: 300, "--extent", 4096, *more)
    say(f"measured: {arch} {kind}{' full' if full else ''}{' '.join(('', *more))}: {len(rows)} combinations of {len(FACTORS) + 1} settings, equal bits")


@pytest.mark.parametrize("arch, more", [("llama", ()), ("gemma3", ("--kv", "q8_0")), ("qwen2", ("--kv", "k8v4"))])
def test_e1_spans(tmp_path, arch, more):
    """Three spans of attention, for the 80 rows of the last pass: one after the other, or apart, by threads that find few heads."""
    model = tiny_model.write(tmp_path / "tiny.gguf", "Q8_0", arch=arch)
    n = 16 * 512 + 80
    ids = np.random.RandomState(9).randint(1, len(tiny_model.tokens()), size=n).tolist()
    evaluator = Evaluator(model, ids, n, tmp_path)
    for threads, chunk in ((1, 512), (2, 512), (5, 512), (3, 100)):
        evaluator.compare(n, ["-t", threads, "--chunk", chunk, "-c", n, *more])


LENGTHS = {1: 24, 7: 60, 64: 320, 512: 640}  # streaming in chunks of 1 and 7 reads the file for every one of them
SCALAR = 48  # tokens at most: that code is slow


def rows_for_real(levels):
    """Every two values of two settings meet at a level that goes the whole length; scalar code on top, once with every value."""
    fast = [level for level in levels if level != "scalar"] or levels
    rows = list(covering({**FACTORS, "level": fast}))
    if "scalar" in levels and "scalar" not in fast:
        n = max(map(len, FACTORS.values()))
        rows += [{**{factor: known[i % len(known)] for factor, known in FACTORS.items()}, "level": "scalar"} for i in range(n)]
    return rows


def length_for_real(row):
    return min(LENGTHS[row["chunk"]], SCALAR) if row["level"] == "scalar" else LENGTHS[row["chunk"]]


@pytest.mark.parametrize("levels_here", (["scalar", "avx2"], ["scalar", "avx2", "avx512"], ["scalar", "avx2", "avxvnni", "avx512", "avx512vnni", "amx"]))
def test_rows_for_real(levels_here):
    """What the list of combinations promises: whole chunks of 64 and 512 in every pair, and no scalar row counted for it."""
    rows = rows_for_real(levels_here)
    fast = [row for row in rows if row["level"] != "scalar"]
    factors = {**FACTORS, "level": levels_here[1:]}
    for (a, xs), (b, ys) in itertools.combinations(factors.items(), 2):
        for x, y in itertools.product(xs, ys):
            assert any(row[a] == x and row[b] == y for row in fast), (a, x, b, y)
    for row in fast:
        assert length_for_real(row) >= {512: 600, 64: 320}.get(row["chunk"], 1), row
    slow = [row for row in rows if row["level"] == "scalar"]
    assert all(length_for_real(row) <= 64 for row in slow)
    for factor, known in FACTORS.items():
        assert {row[factor] for row in slow} == set(known), factor


def ids_of_text(model, n):
    """The first ids of a text, as the model wants them."""
    return weir_json("tokenize", model, "-f", GOLDEN / "text-a.txt", "--bos")["ids"][:n]


@pytest.mark.slow
def test_e1_real(real, tmp_path, levels, say):
    """The real models, in rows_for_real."""
    evaluator = Evaluator(real, ids_of_text(real, 640), 640, tmp_path)
    evaluator.compare(640, ["-c", 640, "--chunk", 512, "--memory", "1G"])
    rows = rows_for_real(levels)
    check_rows(evaluator, rows, levels, length_for_real)
    say(f"measured: {real.stem}: {len(rows)} combinations of {len(FACTORS) + 1} settings, equal bits; rings: {'yes' if uring_available() else 'none, pread instead'}")


def test_e1_smollm2_quick(smollm2, tmp_path, levels):
    """A few points of the same space: every level, the least and the most memory, chunks that do not divide the length."""
    ids = np.load(GOLDEN / "logprobs-smollm2-135m-a.npz")["ids"][:96].tolist()
    evaluator = Evaluator(smollm2, ids, 96, tmp_path)
    evaluator.compare(96, ["-c", 96, "--memory", "1G"])
    for level in levels:
        row = {"share": "least", "threads": 2, "io": "uring", "direct": "auto", "chunk": 40}
        done = evaluator.compare(12 if level == "scalar" else 96, flags_of(row, smollm2, 96), {"WEIR_CPU": level})
        assert done["io"]["engine"] == engine_of(row), done["io"]
    evaluator.compare(96, flags_of({"share": 0.5, "threads": 3, "io": "pread", "direct": "auto", "chunk": 64}, smollm2, 96))


def test_precise(smollm2, tmp_path, levels):
    """int16 activations, on every level."""
    ids = np.load(GOLDEN / "logprobs-smollm2-135m-a.npz")["ids"][100:164].tolist()
    evaluator = Evaluator(smollm2, ids, 64, tmp_path)
    for level in reversed(levels):
        evaluator.compare(8 if level == "scalar" else 64, ["-c", 64, "--precise", "--memory", "1G"], {"WEIR_CPU": level})
    _, default = evaluator.run(64, ["-c", 64, "--memory", "1G"])
    assert (default != evaluator.reference).any(), "--precise does nothing"


def test_e1_ring_and_extents(tiny, tmp_path):
    """Sizes of the ring and of reads, which the plan chooses otherwise."""
    ids = np.random.RandomState(4).randint(1, 2000, size=50).tolist()
    evaluator = Evaluator(tiny, ids, 64, tmp_path)
    evaluator.compare(50, ["-c", 64])
    for extent, ring in (("4096", "64K"), ("4096", "1M"), ("8K", "256K"), ("64K", "1M"), ("1M", "8M")):
        done = evaluator.compare(50, ["-c", 64, "--pin", 0, "--extent", extent, "--ring", ring, "--memory", "1G"])
        assert done["residency"]["streamed"] > 0


def test_one_by_one_equals_all_at_once(smollm2, tmp_path):
    """A text generated with temperature 0 is the argmax of the logits that eval gives for prompt and text."""
    done = weir_json("run", smollm2, "The three most important rivers of Europe are", "--raw", "-n", 16, "--temp", 0, "-c", 128, "--memory", "60M")
    ids = done["prompt_ids"] + done["ids"]
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    weir_json("eval", smollm2, "--ids", tmp_path / "ids.json", "--logits", tmp_path / "out.npy", "-c", 128)
    likeliest = np.load(tmp_path / "out.npy").argmax(axis=1).tolist()
    assert done["ids"] == likeliest[done["n_prompt"] - 1:-1]


def sampled(model, flags, *how):
    done = weir_json("run", model, "Once upon a time", "--raw", *how, *flags)
    asked = [engine for flag, engine in zip(flags, flags[1:]) if flag == "--io"]
    assert not asked or done["io"]["engine"] == engine_of({"io": asked[0]}), done["io"]
    return done["ids"], done["text"]


def test_sampled_text_of_tiny(tiny, levels):
    how = ("-n", 40, "--temp", 1.0, "--top-k", 0, "--seed", 1234567890123)
    expected = sampled(tiny, ["-c", 64], *how)
    for row in covering({**FACTORS, "level": levels}):
        assert sampled(tiny, flags_of(row, tiny, 64, "--extent", 4096) + ["--cpu", row["level"]], *how) == expected, row
    assert sampled(tiny, ["-c", 64], *how[:-1], 2) != expected


def test_sampled_text_of_smollm2(smollm2):
    how = ("-n", 12, "--seed", 7, "--repeat-penalty", 1.1, "--logit-bias", "28=-1.5")
    expected = sampled(smollm2, ["-c", 64, "--memory", "1G"], *how)
    rows = [{"share": "least", "threads": 2, "io": "uring", "direct": "auto", "chunk": 512}]
    rows.append({"share": 0.5, "threads": 1, "io": "pread", "direct": "auto", "chunk": 3})
    for row in rows:
        assert sampled(smollm2, flags_of(row, smollm2, 64), *how) == expected, row
