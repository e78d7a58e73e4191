# SPDX-License-Identifier: Apache-2.0
"""Hyper-parameters with every kind of absurd value (C8), and models whose head is their embedding (C10), in every family."""
import json
import math

import numpy as np
import pytest
import tiny_model
from command import weir, weir_json, weir_measured
from gguf import GGUFValue, GGUFValueType

HUGE = 1 << 31
# For each key: values to refuse; each may instead be refused by the name of a tensor that it contradicts.
REFUSED = {
    "block_count": (0, 1, 3, HUGE),
    "embedding_length": (0, 1, 63, HUGE),
    "feed_forward_length": (0, 1, 191, HUGE),
    "context_length": (0, HUGE + 1),
    "attention.head_count": (0, 1, 3, 5, HUGE),
    "attention.head_count_kv": (0, 1, 3, 5, 8, HUGE),
    "attention.key_length": (0, 1, 31, HUGE),
    "attention.value_length": (0, 1, 31, HUGE),
    "rope.dimension_count": (0, 1, 31, 34, HUGE),
    "vocab_size": (0, 1, HUGE),
    "expert_count": (1, HUGE),
    "attention.layer_norm_rms_epsilon": (0.0, -1.0, math.nan, math.inf),
    "attention.scale": (-1.0, math.nan, math.inf),
    "rope.freq_base": (0.0, -1.0, math.nan, math.inf),
    "rope.scaling.factor": (-1.0, math.nan, math.inf),
    "rope.scaling.type": ("yarn", "longrope", ""),
    "attention.causal": (False,),
    "attn_logit_softcapping": (50.0,),
}
REFUSED_BY = {
    "llama": {"final_logit_softcapping": (30.0, math.nan)},
    "qwen2": {"final_logit_softcapping": (30.0, math.nan)},
    "gemma3": {
        "final_logit_softcapping": (-1.0, math.nan, math.inf),
        "attention.sliding_window": (-1, HUGE + 1),
        "attention.sliding_window_pattern": ("x", -1),
        "attention.key_length_swa": (0, 1, 31, HUGE),
        "attention.value_length_swa": (0, 1, 31, HUGE),
        "rope.dimension_count_swa": (0, 1, 31, HUGE),
        "rope.freq_base_swa": (0.0, -1.0, math.nan, math.inf),
    },
}
# Odd, and yet a model.
ACCEPTED = {
    "context_length": (1, HUGE),
    "attention.layer_norm_rms_epsilon": (1.0, float(HUGE)),
    "attention.scale": (0.0, 1.0),
    "rope.freq_base": (1.0, float(HUGE)),
    "rope.scaling.factor": (0.0, 1.0, float(HUGE)),
    "rope.dimension_count": (2, 30),
    "attn_logit_softcapping": (0.0,),
}
ACCEPTED_BY = {
    "llama": {"final_logit_softcapping": (0.0,)},
    "qwen2": {"final_logit_softcapping": (0.0,)},
    "gemma3": {
        "final_logit_softcapping": (0.0, 1.0, float(HUGE)),
        "attention.sliding_window": (0, 1, HUGE),
        "attention.sliding_window_pattern": (0, 1, HUGE),
        "rope.freq_base_swa": (1.0, float(HUGE)),
    },
}
TYPES = {bool: GGUFValueType.BOOL, float: GGUFValueType.FLOAT32, str: GGUFValueType.STRING}


def put(arch, changes):
    def keys(metadata):
        for key, value in changes.items():
            kind = GGUFValueType.INT32 if value == -1 and isinstance(value, int) else TYPES.get(type(value), GGUFValueType.UINT32)
            metadata[f"{arch}.{key}"] = GGUFValue(value, kind)

    return keys


def check_refused(path, key, why):
    """The house rule: exit code, one line with the file and the key (or the tensor that it contradicts), little time and memory."""
    done = weir_measured("plan", path, "--memory", "64M", "-c", 1)
    lines = done.err.splitlines()
    assert done.code in (1, 4) and not done.out, f"{why}: {done.show()}"
    assert len(lines) == 1 and path.name in lines[0], f"{why}: {done.show()}"
    assert key in lines[0] or "tensor " in lines[0], f"{why}: {done.show()}"
    assert done.usage["cpu"] < 2 and done.usage["max_rss"] < 64 << 20, f"{why}: {done.usage}"
    return lines[0]


@pytest.mark.parametrize("arch", tiny_model.ARCHES)
def test_c8_absurd_values_are_refused(tmp_path, say, arch):
    cases = [(key, value) for key, values in {**REFUSED, **REFUSED_BY[arch]}.items() for value in values]
    named = 0
    for key, value in cases:
        path = tiny_model.write(tmp_path / "m.gguf", arch=arch, keys=put(arch, {key: value}))
        line = check_refused(path, key.rsplit(".", 1)[-1], (key, value))  # a line may begin with the other of two keys that differ
        named += f"{arch}." in line
        assert not isinstance(value, float) or f"{arch}.{key}" in line, line  # no tensor contradicts a factor
    say(f"measured: {arch}: {len(cases)} absurd values of keys are refused, {named} by the name of the key and {len(cases) - named} by the tensor that it contradicts")


@pytest.mark.parametrize("arch", tiny_model.ARCHES)
def test_c8_heads_that_do_not_divide_the_width(tmp_path, arch):
    def keys(metadata):
        for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            del metadata[f"{arch}.{key}"]
        put(arch, {"attention.head_count": 5, "attention.head_count_kv": 5})(metadata)

    line = check_refused(tiny_model.write(tmp_path / "m.gguf", arch=arch, keys=keys), f"{arch}.attention.head_count", "5 heads of 64")
    assert "5" in line and "64" in line


@pytest.mark.parametrize("arch", tiny_model.ARCHES)
def test_c8_missing_tensors_and_keys(tmp_path, arch):
    """A layer more than the file has tensors for; and each key that there is no default for."""
    line = check_refused(tiny_model.write(tmp_path / "m.gguf", arch=arch, keys=put(arch, {"block_count": 3})), "blk.2.", "a layer more")
    assert "tensor blk.2.attn_norm.weight is missing" in line
    needed = ["block_count", "embedding_length", "feed_forward_length", "context_length", "attention.head_count", "attention.layer_norm_rms_epsilon"]
    for key in needed:
        path = tiny_model.write(tmp_path / "m.gguf", arch=arch, keys=lambda metadata: metadata.pop(f"{arch}.{key}"))
        assert f"key {arch}.{key} is missing" in check_refused(path, key, f"without {key}")


@pytest.mark.parametrize("arch", tiny_model.ARCHES)
def test_c8_patterns_of_another_length(tmp_path, arch):
    """An array with a value for every layer has as many values as layers. Families without windows do not read the key."""
    def keys(metadata):
        metadata[f"{arch}.attention.sliding_window_pattern"] = GGUFValue([True, False, True], GGUFValueType.ARRAY, GGUFValueType.BOOL)

    path = tiny_model.write(tmp_path / "m.gguf", arch=arch, keys=keys)
    if arch == "gemma3":
        check_refused(path, "gemma3.attention.sliding_window_pattern", "3 values for 2 layers")
    else:
        weir("plan", path, expect=0)


@pytest.mark.parametrize("arch", tiny_model.ARCHES)
def test_c8_odd_values_run(tmp_path, arch):
    """What the refusals must not catch."""
    ids = list(range(1, 41))
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    for key, values in {**ACCEPTED, **ACCEPTED_BY[arch]}.items():
        for value in values:
            path = tiny_model.write(tmp_path / "m.gguf", arch=arch, keys=put(arch, {key: value}))
            weir_json("eval", path, "--ids", tmp_path / "ids.json", "--logits", tmp_path / "out.npy", "-c", 40)
            assert np.isfinite(np.load(tmp_path / "out.npy")).all(), (key, value)


def evaluated(model, folder, *flags):
    (folder / "ids.json").write_text(json.dumps(np.random.RandomState(6).randint(1, len(tiny_model.tokens()), size=60).tolist()))
    done = weir_json("eval", model, "--ids", folder / "ids.json", "--logits", folder / "out.npy", "-c", 64, *flags)
    return done, np.load(folder / "out.npy").view(np.uint32)


@pytest.mark.parametrize("kind", ("F32", "Q8_0"))
@pytest.mark.parametrize("arch", tiny_model.ARCHES)
def test_c10_tied_head(tmp_path, arch, kind):
    """With and without output.weight: the same logits, and the shared matrix is in the budget once."""
    full = arch != "gemma3"  # the graphs that are tied
    tied = tiny_model.write(tmp_path / "tied.gguf", kind, full, arch=arch)
    twin = tiny_model.write(tmp_path / "twin.gguf", kind, full, arch=arch, twin=True)
    matrix = [t["bytes"] for t in weir_json("inspect", tied)["tensors"] if t["name"] == "token_embd.weight"][0]
    plans = [weir_json("plan", path, "-c", 64, "--memory", "256M") for path in (tied, twin)]
    assert plans[1]["weight_bytes"] - plans[0]["weight_bytes"] == matrix
    pinned = [plan["memory"]["accounts"]["weights_pinned"]["reserved"] for plan in plans]
    assert 0 <= pinned[1] - pinned[0] - matrix <= 2 * 4096, (pinned, matrix)
    assert all(plan["residency"]["streamed"] == 0 for plan in plans)
    whole = {path: evaluated(path, tmp_path)[1] for path in (tied, twin)}
    assert (whole[tied] == whole[twin]).all()
    done, streamed = evaluated(tied, tmp_path, "--pin", 0, "--extent", 4096, "--memory", "256M")
    assert done["residency"]["streamed"] > 0 and (streamed == whole[tied]).all()


@pytest.mark.full
def test_c10_gemmas_head_streams(gemma):
    """178 MB of 253 are the tied head: at half of the file's size it cannot be in memory, nor be there twice when it can."""
    half = weir_json("plan", gemma, "--memory", gemma.stat().st_size // 2)
    head = [t["bytes"] for t in weir_json("inspect", gemma)["tensors"] if t["name"] == "token_embd.weight"][0]
    assert head > half["memory"]["budget"] and half["residency"]["streamed"] > head - half["residency"]["pinned"] > 0
    whole = weir_json("plan", gemma, "--memory", "2G")
    assert whole["residency"]["streamed"] == 0 and whole["memory"]["accounts"]["weights_pinned"]["reserved"] < whole["weight_bytes"] + (2 << 20)
    text = weir_json("run", gemma, "The capital of France is", "--raw", "--memory", gemma.stat().st_size // 2, "--temp", 0, "-n", 24, "-c", 512)
    assert text["residency"]["streamed"] > 0 and len(text["ids"]) > 0 and "France" in text["text"], text["text"]
