# SPDX-License-Identifier: Apache-2.0
"""Layers that see a window: around its border, and with chunks that straddle it (E4). A key at p is hidden from a query at q when q - p >= window."""
import json

import forward
import numpy as np
import pytest
import tiny_model
from command import weir_json
from gguf import GGUFValueType, GGUFValue
from test_tiny import relative_error, tiny_ids

WINDOW = tiny_model.WINDOW
LENGTHS = (15, 16, 17, 31, 32, 33, 100)
CHUNKS = (1, 5, 16, 40)


def weir_logits(folder, model, ids, chunk, *flags):
    (folder / "ids.json").write_text(json.dumps(np.asarray(ids).tolist()))
    weir_json("eval", model, "--ids", folder / "ids.json", "--logits", folder / "out.npy", "-c", len(ids), "--chunk", chunk, *flags)
    return np.load(folder / "out.npy")


def with_window(window):
    def put(keys):
        keys["gemma3.attention.sliding_window"] = GGUFValue(window, GGUFValueType.UINT32)

    return put


def oracle_logits(path, ids):
    model = forward.Model(path, np.float64)
    (states,) = forward.hidden_states(model, ids)
    return forward.logits(model, states)


@pytest.mark.parametrize("full", (False, True), ids=("layer 0 local", "layer 1 local"))
def test_e4_lengths_and_chunks(tmp_path, say, full):
    ids = tiny_ids(max(LENGTHS))
    path = tiny_model.write(tmp_path / "m.gguf", full=full, arch="gemma3")
    expected, worst = oracle_logits(path, ids), 0
    for length in LENGTHS:
        for chunk in CHUNKS:
            error = relative_error(weir_logits(tmp_path, path, ids[:length], chunk, "--kv", "f32"), expected[:length])
            worst = max(worst, error)
            assert error <= 1e-4, (length, chunk)
    say(f"measured: window of {WINDOW}, {len(LENGTHS)} lengths x {len(CHUNKS)} chunks, layer {int(full)} local: relative error {worst:.1e}")
    for wrong in (WINDOW - 1, WINDOW + 1):  # one key more or less is seen by this test
        off = oracle_logits(tiny_model.write(tmp_path / "wrong.gguf", full=full, arch="gemma3", keys=with_window(wrong)), ids)
        first = min(wrong, WINDOW)
        assert relative_error(off[:first], expected[:first]) < 1e-12
        assert all(relative_error(off[row:row + 1], expected[row:row + 1]) > 1e-3 for row in (first, 40, 99))


@pytest.mark.parametrize("window", (255, 256, 257, 300, 512))
def test_e4_windows_across_tiles(tmp_path, window):
    """Windows about as long as a tile of attention (256), so that whole tiles are out of sight of some queries of a chunk and not of others."""
    ids = tiny_ids(900)
    path = tiny_model.write(tmp_path / "m.gguf", arch="gemma3", keys=with_window(window))
    expected = oracle_logits(path, ids)
    for chunk in (64, 500):
        assert relative_error(weir_logits(tmp_path, path, ids, chunk, "--kv", "f32"), expected) <= 1e-4, chunk


def test_e4_no_window(tmp_path):
    """All layers are global, with the RoPE of global layers."""
    def write(window):
        def keys(metadata):
            del metadata["gemma3.attention.sliding_window"]
            if window is not None:
                with_window(window)(metadata)
            metadata["gemma3.rope.freq_base_swa"] = GGUFValue(500.0, GGUFValueType.FLOAT32)

        return tiny_model.write(tmp_path / "m.gguf", arch="gemma3", keys=keys)

    ids = tiny_ids(100)
    expected = {window: oracle_logits(write(window), ids) for window in (None, 0, 1 << 20)}
    assert relative_error(expected[1 << 20], expected[None]) > 1e-3  # a window that hides nothing is not the same
    for window in expected:
        for chunk in CHUNKS:
            assert relative_error(weir_logits(tmp_path, write(window), ids, chunk, "--kv", "f32"), expected[window]) <= 1e-4, (window, chunk)


# ---- a needle that is seen or not ----

HAY, QUESTION, NEEDLES = 200, 11, range(1, 11)  # words


def needle_model(path, layer):
    """After `?` the likeliest word is the needle that attention of the layer sees; `?` itself where it sees none. The other layer adds nothing.

    Needles have one key in common and a value of their own, hay has neither, and `?` asks for that key, in a dimension that is not
    rotated. The score of a needle is 40 above that of hay.
    """
    flag, asks, names = 0, 1, 10  # dimensions of an embedding: is a needle, is a question, which needle
    dim = 20                      # of a head: where keys and questions meet
    size = tiny_model.HEAD_DIM

    def weights(name, x):
        if name.endswith("norm.weight"):
            x[:] = 1
        else:
            x[:] = 0
        if name == "token_embd.weight":
            x[:, 2] = 1
            x[[QUESTION, *NEEDLES]] = 0
            x[QUESTION, asks] = 1
            for needle in NEEDLES:
                x[needle, [flag, names + needle]] = 1
        if name.endswith("attn_q.weight"):
            x[dim::size, asks] = 1
        if name.endswith("attn_k.weight"):
            x[dim::size, flag] = 1
        if name.endswith("attn_v.weight"):
            for needle in NEEDLES:
                x[needle::size, names + needle] = 1
        if name == f"blk.{layer}.attn_output.weight":
            for needle in NEEDLES:
                x[names + needle, needle] = 1  # of the first head
        if name.endswith("attn_q_norm.weight"):
            x[:] = 40 / size**0.5
        if name.endswith("post_attention_norm.weight"):
            x[:] = 3
        return x

    def part_of_head(keys):
        keys["gemma3.rope.dimension_count"] = GGUFValue(16, GGUFValueType.UINT32)

    return tiny_model.write(path, arch="gemma3", change=weights, keys=part_of_head)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_e4_needle(tmp_path, chunk):
    """A needle one step inside the window is seen, one step outside is not."""
    path = needle_model(tmp_path / "m.gguf", 0)
    ids, expected = np.full(420, HAY), {}
    for i, at in enumerate(range(3, 400, 37)):  # 37: before, on and after the borders of key blocks and of the tile
        ids[at] = needle = NEEDLES[i % len(NEEDLES)]
        ids[at + WINDOW - 1:at + WINDOW + 1] = QUESTION
        expected.update({at + WINDOW - 1: needle, at + WINDOW: QUESTION})
    logits = weir_logits(tmp_path, path, ids, chunk)
    assert {row: logits[row].argmax() for row in expected} == expected
    outside = [row for row, word in expected.items() if word == QUESTION]
    assert (logits[outside][:, list(NEEDLES)] == 0).all()


@pytest.mark.parametrize("chunk", CHUNKS)
def test_e4_needle_in_a_global_layer(tmp_path, chunk):
    """The same model with the other layer: that one has no window."""
    path = needle_model(tmp_path / "m.gguf", 1)
    ids = np.full(420, HAY)
    ids[0], ids[1::WINDOW] = NEEDLES[4], QUESTION
    assert (weir_logits(tmp_path, path, ids, chunk)[1::WINDOW].argmax(axis=1) == NEEDLES[4]).all()
