# SPDX-License-Identifier: Apache-2.0
"""What answers of other engines went wrong with, one test a case: long contexts, placement, models of another kind. The names are the cases'."""
import itertools
import json

import forward
import needle_model
import numpy as np
import pytest
import tiny_model
from command import weir, weir_json
from test_same_bits import Evaluator, covering, flags_of

MIB = 1 << 20
TILE = 256  # positions of keys and values that attention reduces at a time


# ---- B3: keys and values are in memory today; what will lie on disk must pass the same ----

def depths(n):
    """Where needles lie: first, second, around every border of a tile, middle, last; in lots of as many as a text can ask for."""
    borders = [border + step for border in range(TILE, n - TILE // 2, TILE) for step in (-1, 0, 1)]
    wanted = sorted({0, 1, n // 2, *borders})
    n_texts = -(-len(wanted) // (needle_model.N_KEYS - 1))
    lots = [wanted[i::n_texts] for i in range(n_texts)]
    return [[*lot, n - len(lot) - 2] for lot in lots]  # the last place before the questions


def test_b3_needle_model_is_right(tmp_path):
    """In float64 the answers are what the model is made for, and a lost needle is seen."""
    model = forward.Model(needle_model.write(tmp_path / "needle.gguf", 1024), np.float64)
    ids, values = needle_model.text(700, depths(700)[0])
    (states,) = forward.hidden_states(model, ids)
    needle_model.check(forward.logits(model, states), values)
    ids[1] = needle_model.HAY
    (states,) = forward.hidden_states(model, ids)
    with pytest.raises(AssertionError, match="needles"):
        needle_model.check(forward.logits(model, states), values)


@pytest.fixture(scope="module")
def needle(tmp_path_factory):
    return needle_model.write(tmp_path_factory.mktemp("needle") / "needle.gguf", 65536)


def find_needles(needle, folder, n, lots, settings):
    """Every needle in every setting; the logits of all rows are those of the first setting, bit for bit."""
    for lot in lots:
        ids, values = needle_model.text(n, lot)
        (folder / "ids.json").write_text(json.dumps(ids))
        reference = None
        for flags in settings:
            weir_json("eval", needle, "--ids", folder / "ids.json", "--logits", folder / "out.npy", "-c", n, *flags)
            logits = np.load(folder / "out.npy")
            needle_model.check(logits, values)
            if reference is None:
                reference = logits
            assert (logits.view(np.uint32) == reference.view(np.uint32)).all(), flags
    return sum(map(len, lots))


def least(needle, n, *flags):
    flags = ("-c", n, "--pin", 0, *flags)
    return (*flags, "--memory", weir_json("plan", needle, *flags)["min_budget"])


@pytest.mark.parametrize("kv", ("f16", "f32", "q8_0", "k8v4"))
def test_b3_needles_in_4096(needle, tmp_path, say, kv):
    """All depths, chunks of 1, 7, 64 and 512 rows, everything pinned and nothing."""
    n = 4096
    settings = [("--memory", "1G", "--kv", kv, "--chunk", chunk) for chunk in (512, 64, 7, 1)]
    settings += [least(needle, n, "--kv", kv, "--chunk", chunk) for chunk in (64, 512)]
    found = find_needles(needle, tmp_path, n, depths(n), settings)
    say(f"measured: {found} needles in {n} positions, {kv}, {len(settings)} settings: all found, equal bits")


def test_b3_needles_in_16384(needle, tmp_path, say):
    """More than one span of 4,096, and a quarter of the depths with another chunk and another budget."""
    n = 16384
    lots = depths(n)
    found = find_needles(needle, tmp_path, n, lots[1:], [("--memory", "1G")])
    found += find_needles(needle, tmp_path, n, lots[:1], [("--memory", "1G"), least(needle, n, "--chunk", 64)])
    say(f"measured: {found} needles in {n} positions: all found")


@pytest.mark.full
@pytest.mark.parametrize("n, chunks", [(16384, (1, 7, 64, 512)), (50000, (64, 512))])
def test_b3_needles_far_away(needle, tmp_path, n, chunks, say):
    found = find_needles(needle, tmp_path, n, depths(n)[:1], [("--memory", "1G", "--chunk", chunk) for chunk in chunks])
    say(f"measured: {found} needles in {n} positions, chunks of {chunks}: all found, equal bits")


# ---- E1 ----

PLACES = {
    "share": ("least", 0.25, 0.5, 1),
    "threads": (1, 2, 3, 4, 5, 6, 7, 8),
    "chunk": (1, 3, 64, 512),
    "direct": ("auto", "off"),
    "io": ("auto",),
}


def test_e1_tiny_in_every_combination(tmp_path, say):
    """1 to 8 threads x chunks of 1, 3, 64, 512 x all, half, a quarter and the least of memory x direct and buffered: equal bits, which are right."""
    model = tiny_model.write(tmp_path / "tiny.gguf", "F32")
    ids = np.random.RandomState(11).randint(1, len(tiny_model.tokens()), size=70).tolist()
    evaluator = Evaluator(model, ids, 80, tmp_path)
    rows = [dict(zip(PLACES, row)) for row in itertools.product(*PLACES.values())]
    assert len(rows) == 256
    evaluator.compare(len(ids), ["-c", 80, "--kv", "f32", "--memory", "1G"])
    for row in rows:
        done = evaluator.compare(len(ids), flags_of(row, model, 80, "--kv", "f32", "--extent", 4096))
        assert done["threads"] == row["threads"] and (done["residency"]["streamed"] > 0) == (row["share"] != 1)
    oracle = forward.Model(model, np.float64)
    (states,) = forward.hidden_states(oracle, ids)
    exact = forward.logits(oracle, states)
    error = (np.abs(evaluator.reference.view(np.float32) - exact).max(axis=1) / np.abs(exact).max(axis=1)).max()
    say(f"measured: {len(rows)} combinations of threads, chunk, budget and direct reads: equal bits, relative error {error:.1e}")
    assert error <= 1e-3


def test_e1_dense(dense, tmp_path, say):
    """Every two settings of two kinds meet in one run. A text of 64 tokens, drawn with temperature 0, is the same too."""
    ids = np.random.RandomState(12).randint(1, 2000, size=8).tolist()
    evaluator = Evaluator(dense.path, ids, 96, tmp_path)
    evaluator.compare(len(ids), ["-c", 96, "--memory", "2G"])
    rows = list(covering(PLACES))
    for row in rows:
        evaluator.compare(len(ids), flags_of(row, dense.path, 96))
    texts = set()
    for row in (rows[0], {**rows[0], "share": 1, "threads": 2}, {**rows[0], "share": 0.5, "threads": 3, "direct": "off"}):
        done = weir_json("run", dense.path, "hello", "--raw", "--ignore-eos", "--temp", 0, "-n", 64, *flags_of(row, dense.path, 96))
        texts.add(tuple(done["ids"]))
    say(f"measured: {dense.bytes / MIB:.0f} MiB of weights, {len(rows)} combinations: equal bits")
    assert len(texts) == 1


# ---- E8: what there is not is refused, by name ----

def mixture(path, arch, **keys):
    def add(metadata):
        from gguf import GGUFValue, GGUFValueType

        for key, value in keys.items():
            metadata[f"{arch}.{key}"] = GGUFValue(value=value, type=GGUFValueType.UINT32)

    return tiny_model.write(path, arch=arch, keys=add)


@pytest.mark.parametrize("arch, keys, word", [
    ("llama", {"expert_count": 8, "expert_used_count": 2}, "llama.expert_count"),
    ("llama", {"expert_count": 32, "expert_used_count": 2, "expert_gating_func": 2}, "llama.expert_count"),
    ("qwen3moe", {"expert_count": 128, "expert_used_count": 8}, "qwen3moe"),
    ("llama4", {"expert_count": 16, "expert_gating_func": 77}, "llama4"),
])
def test_e8_mixtures_are_refused(tmp_path, arch, keys, word):
    """How a router's scores become weights is a matter of the file; until weir reads it, no such file is answered from."""
    model = mixture(tmp_path / "moe.gguf", arch, **keys)
    for command in (("run", model, "x", "-n", 1), ("plan", model)):
        error = weir(*command, "--json", expect=4).json["error"]
        assert error["code"] == "WEIR_E_UNSUPPORTED" and word in error["message"] and "moe.gguf" in error["message"], error


def test_final_norm_not_finite(tmp_path):
    """The error names the position that wanted logits, the last one of the prompt."""
    def change(name, x):
        if name == "output_norm.weight":
            x = x.copy()
            x[3] = np.inf
        return x

    n_prompt = weir_json("run", tiny_model.write(tmp_path / "whole.gguf", "Q8_0"), "hello there", "--raw", "-n", 1)["n_prompt"]
    damaged = weir("run", tiny_model.write(tmp_path / "damaged.gguf", "Q8_0", change=change), "hello there", "--raw", "-n", 1, expect=1)
    assert n_prompt > 1 and f"an activation of position {n_prompt - 1} is not finite" in damaged.err, damaged.show()
