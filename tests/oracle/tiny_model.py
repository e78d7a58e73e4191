# SPDX-License-Identifier: Apache-2.0
"""tiny_model.py OUT.gguf [TYPE [ARCH]]: a small model of random weights, written with the gguf package, the same bytes everywhere.

2 layers, n_embd 64, 4 heads and 2 of keys x 32, n_ff 192, byte tokens and 64 merges, context 8192. TYPE (F32, F16, BF16, Q4_0, Q4_1, Q8_0)
is that of the matrices. `full` adds what few files have: a part of each head rotated, a scale of its own, and
llama   biases, frequency factors, a tied head where it else has one of its own
qwen2   output.bias and a tied head
gemma3  a head of its own where it else is tied, a soft cap of the logits, a RoPE factor and a local RoPE base, the layers' windows in an array
The window of gemma3 is 16; without `full` its layer 0 has it, with `full` layer 1.
"""
import functools
import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType, TokenType, quants

N_EMBD, N_FF, N_HEAD, N_HEAD_KV, HEAD_DIM, N_LAYER = 64, 192, 4, 2, 32, 2
MERGED = "etaoinsh"
WINDOW = 16  # of gemma3
ARCHES = ("llama", "qwen2", "gemma3")


def byte_symbols():
    """GPT-2's alphabet: a printable character for every byte."""
    plain = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def tokens():
    return ["<|endoftext|>", *byte_symbols(), *[a + b for a in MERGED for b in MERGED]]


def tied(full, arch):
    return full != (arch == "gemma3")


def matrices(full, arch):
    """Name and shape [n_out][n_in], in the order of the file."""
    n_q, n_kv = N_HEAD * HEAD_DIM, N_HEAD_KV * HEAD_DIM
    yield "token_embd.weight", (len(tokens()), N_EMBD)
    for layer in range(N_LAYER):
        parts = {"attn_q": (n_q, N_EMBD), "attn_k": (n_kv, N_EMBD), "attn_v": (n_kv, N_EMBD), "attn_output": (N_EMBD, n_q)}
        parts.update({"ffn_gate": (N_FF, N_EMBD), "ffn_up": (N_FF, N_EMBD), "ffn_down": (N_EMBD, N_FF)})
        biased = {"qwen2": ("attn_q", "attn_k", "attn_v"), "gemma3": ()}.get(arch, parts if full else ())
        for part, shape in parts.items():
            yield f"blk.{layer}.{part}.weight", shape
            if part in biased:
                yield f"blk.{layer}.{part}.bias", shape[:1]
        yield f"blk.{layer}.attn_norm.weight", (N_EMBD,)
        yield f"blk.{layer}.ffn_norm.weight", (N_EMBD,)
        if arch == "gemma3":
            yield f"blk.{layer}.attn_q_norm.weight", (HEAD_DIM,)
            yield f"blk.{layer}.attn_k_norm.weight", (HEAD_DIM,)
            yield f"blk.{layer}.post_attention_norm.weight", (N_EMBD,)
            yield f"blk.{layer}.post_ffw_norm.weight", (N_EMBD,)
    yield "output_norm.weight", (N_EMBD,)
    if full and arch == "llama":
        yield "rope_freqs.weight", (8,)
    if full and arch == "qwen2":
        yield "output.bias", (len(tokens()),)
    if not tied(full, arch):
        yield "output.weight", (len(tokens()), N_EMBD)


def values(name, shape, draw):
    if name == "rope_freqs.weight":
        return 1 + draw.random_sample(shape) * 7
    if name.endswith("norm.weight"):
        return 1 + 0.2 * draw.standard_normal(shape)
    if name.endswith(".bias"):
        return 0.1 * draw.standard_normal(shape)
    return draw.standard_normal(shape) / np.sqrt(shape[-1])


@functools.lru_cache
def encoded(kind, full, change, arch):
    """Name, encoded values and type of every tensor. Some tests write hundreds of files of the same weights."""
    draw = np.random.RandomState(20)  # its streams are frozen, those of newer generators are not
    tensors = []
    for name, shape in matrices(full, arch):
        x = values(name, shape, draw).astype(np.float32)
        if change:
            x = change(name, x)
        encoding = GGMLQuantizationType[kind] if len(shape) == 2 else GGMLQuantizationType.F32
        tensors.append((name, quants.quantize(x, encoding), encoding))
    return tensors


def write(path, kind="F32", full=False, context=8192, arch="llama", template=None, change=None, model="gpt2", pre="gpt-2", keys=None, writer=GGUFWriter,
          twin=False):
    """`change(name, values)` may alter the values of a tensor before they are encoded, `keys(metadata)` the dictionary of gguf.GGUFValue.

    `twin`: a tied head as a tensor of its own.
    """
    writer = writer(str(path), arch)
    writer.add_name("tiny test model")
    writer.add_block_count(N_LAYER)
    writer.add_context_length(context)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(16 if full else HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    if full:
        writer.add_attention_scale(0.25)
    if arch == "gemma3":
        writer.add_sliding_window(WINDOW)
        writer.add_sliding_window_pattern([False, True] if full else 2)
    if arch == "gemma3" and full:
        writer.add_final_logit_softcapping(2.0)
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)
        writer.add_float32("gemma3.rope.freq_base_swa", 500.0)
    words = tokens()
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(words)
    writer.add_token_types([TokenType.CONTROL] + [TokenType.NORMAL] * (len(words) - 1))
    writer.add_token_merges([f"{a} {b}" for a in MERGED for b in MERGED])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    if template is not None:
        writer.add_chat_template(template)
    if keys:
        keys(writer.kv_data[0])
    for name, x, encoding in encoded(kind, full, change, arch):
        writer.add_tensor(name, x, raw_dtype=encoding)
        if twin and name == "token_embd.weight":
            writer.add_tensor("output.weight", x, raw_dtype=encoding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


if __name__ == "__main__":
    write(sys.argv[1], *sys.argv[2:3], **({"arch": sys.argv[3]} if sys.argv[3:] else {}))
