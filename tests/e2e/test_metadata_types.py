# SPDX-License-Identifier: Apache-2.0
"""Every key that weir reads, with a value of every type: the run works or is refused by the name of the key, quickly, and never crashes."""
import concurrent.futures
import subprocess

import pytest
import tiny_model
from command import WEIR, environment
from gguf import GGUFValue, GGUFValueType as V

LLAMA = (
    "block_count", "embedding_length", "feed_forward_length", "context_length", "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "expert_count", "attention.layer_norm_rms_epsilon", "attention.scale", "rope.freq_base", "rope.dimension_count",
    "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor",
    "attention.clamp_kqv", "attention.max_alibi_bias", "attention.temperature_scale", "attention.causal", "attn_logit_softcapping", "final_logit_softcapping",
    "logit_scale", "residual_scale", "embedding_scale", "use_parallel_residual", "vocab_size",
)
GEMMA3 = ("attention.sliding_window", "attention.sliding_window_pattern", "attention.key_length_swa", "rope.freq_base_swa", "final_logit_softcapping")
TOKENIZER = (
    "model", "pre", "tokens", "merges", "token_type", "bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id", "padding_token_id",
    "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id", "add_bos_token", "add_eos_token", "add_space_prefix", "scores",
)
GENERAL = ("general.architecture", "general.alignment", "general.type", "general.quantization_version", "general.name", "split.count", "split.no", "split.tensors.count",
    "tokenizer.chat_template")
KEYS = (*GENERAL, *(f"llama.{key}" for key in LLAMA), *(f"gemma3.{key}" for key in GEMMA3), *(f"tokenizer.ggml.{key}" for key in TOKENIZER))
TYPES = tuple(V)
LIMITS = {V.UINT8: (0, 255), V.INT8: (-128, 127), V.UINT16: (0, 65535), V.INT16: (-32768, 32767)}
# A type that says what the key says must not be refused. A word the file has already, and numbers that a u8 holds.
STANDARD = {"general.alignment": 32, "general.type": "model", "general.quantization_version": 2, "llama.expert_count": 0, "tokenizer.chat_template": "x", "gemma3.attention.key_length_swa": 32}


def value_of(kind, now):
    """A value of the type that says the same as `now` where it can, and otherwise 1."""
    if kind == V.STRING:
        return GGUFValue(now if isinstance(now, str) else "1", kind)
    if kind == V.ARRAY:
        return GGUFValue([1, 2, 3], kind, V.INT32)
    if kind == V.BOOL:
        return GGUFValue(now if isinstance(now, bool) else True, kind)
    number = now if isinstance(now, (int, float)) and not isinstance(now, bool) else 1
    if kind in (V.FLOAT32, V.FLOAT64):
        return GGUFValue(float(number), kind)
    least, most = LIMITS.get(kind, (0, 1 << 31))
    return GGUFValue(number if isinstance(number, int) and least <= number <= most else 1, kind)


def try_one(path, key, kind):
    """What is wrong with the run, or None; and its exit code."""
    def put(metadata):
        now = metadata[key].value if key in metadata else STANDARD.get(key)
        metadata[key] = value_of(kind, now)

    tiny_model.write(path, "Q8_0", keys=put, arch="gemma3" if key.startswith("gemma3") else "llama")
    # The limit is on processor time, so that a busy machine does not count; whoever passes it is killed by a signal.
    words = ["sh", "-c", 'ulimit -t 2; exec "$@"', "sh", str(WEIR), "run", str(path), "x", "--raw", "-n", "1", "-t", "1"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, env=environment(), timeout=60, check=False)
    path.unlink()
    err = done.stderr.decode(errors="replace")
    if done.returncode not in (0, 1, 4):
        return f"{key} as {kind.name}: exit {done.returncode}: {err}", done.returncode
    # A width that the type cannot hold became 1, which contradicts a matrix of the file: that one is named.
    contradicts = key == "llama.feed_forward_length" and kind == V.INT8 and "tensor blk.0.ffn_gate.weight has shape {64, 192}, expected {64, 1}" in err
    if done.returncode != 0 and key not in err and not contradicts:
        return f"{key} as {kind.name}: the refusal does not name the key: {err}", done.returncode
    return None, done.returncode


def test_c9_every_key_with_every_type(tmp_path, say):
    assert len(TYPES) == 13
    cases = [(key, kind) for key in KEYS for kind in TYPES]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda i: try_one(tmp_path / f"{i}.gguf", *cases[i]), range(len(cases))))
    wrong = [complaint for complaint, _ in results if complaint]
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong)
    code = dict(zip(cases, (code for _, code in results)))
    say(f"measured: {len(KEYS)} keys x {len(TYPES)} types: {sum(c == 0 for c in code.values())} run, {sum(c != 0 for c in code.values())} are refused")
    strings = ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre")
    for key in KEYS:  # the types that files really have
        if key in strings:
            assert code[key, V.STRING] == 0 and code[key, V.UINT32] != 0 and code[key, V.ARRAY] != 0, key
        elif key.startswith("llama.attention.head") or key in ("llama.block_count", "llama.embedding_length", "general.alignment"):
            assert code[key, V.UINT32] == 0 and code[key, V.STRING] != 0 and code[key, V.ARRAY] != 0, key
        elif key.startswith("gemma3."):
            assert code[key, V.UINT32] == 0 and code[key, V.STRING] != 0 and code[key, V.ARRAY] != 0 and code[key, V.BOOL] != 0, key
        elif key.startswith("tokenizer.ggml.add_"):
            assert code[key, V.BOOL] == 0 and code[key, V.STRING] != 0, key
        elif key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type"):
            assert all(code[key, kind] != 0 for kind in TYPES), key


@pytest.mark.parametrize("key", ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type"))
@pytest.mark.parametrize("element", [kind for kind in TYPES if kind != V.ARRAY])
def test_c5_c9_arrays_of_every_type(tmp_path, key, element):
    """Of the right length, and elements of any type."""
    right = (V.INT32, V.UINT32) if key.endswith("token_type") else (V.STRING,)

    def put(metadata):
        n = len(metadata[key].value)
        if element not in right:
            filler = "1" if element == V.STRING else True if element == V.BOOL else 1.0 if element in (V.FLOAT32, V.FLOAT64) else 1
            metadata[key] = GGUFValue([filler] * n, V.ARRAY, element)
        elif element != V.STRING:
            metadata[key] = GGUFValue([int(x) for x in metadata[key].value], V.ARRAY, element)

    path = tiny_model.write(tmp_path / "array.gguf", "Q8_0", keys=put)
    done = subprocess.run([str(WEIR), "run", str(path), "x", "--raw", "-n", "1"], stdin=subprocess.DEVNULL, capture_output=True, env=environment(), timeout=60, check=False)
    err = done.stderr.decode(errors="replace")
    if element in right:
        assert done.returncode == 0, err
    else:
        assert done.returncode == 1 and key in err, (done.returncode, err)
