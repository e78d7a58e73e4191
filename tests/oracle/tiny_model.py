# SPDX-License-Identifier: Apache-2.0
"""tiny_model.py OUT.gguf [TYPE]: a small llama model of random weights, written with the gguf package, the same bytes everywhere.

2 layers, n_embd 64, 4 heads and 2 of keys x 32, n_ff 192, byte tokens and 64 merges, context 8192. TYPE (F32, F16, BF16, Q4_0, Q4_1, Q8_0)
is that of the matrices. `full` adds what few files have: biases, frequency factors, a part of each head rotated, a scale of its own, tied head.
"""
import functools
import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants

N_EMBD, N_FF, N_HEAD, N_HEAD_KV, HEAD_DIM, N_LAYER = 64, 192, 4, 2, 32, 2
MERGED = "etaoinsh"


def byte_symbols():
    """GPT-2's alphabet: a printable character for every byte."""
    plain = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def tokens():
    return ["<|endoftext|>", *byte_symbols(), *[a + b for a in MERGED for b in MERGED]]


def matrices(full):
    """Name and shape [n_out][n_in], in the order of the file."""
    n_q, n_kv = N_HEAD * HEAD_DIM, N_HEAD_KV * HEAD_DIM
    yield "token_embd.weight", (len(tokens()), N_EMBD)
    for layer in range(N_LAYER):
        parts = {"attn_q": (n_q, N_EMBD), "attn_k": (n_kv, N_EMBD), "attn_v": (n_kv, N_EMBD), "attn_output": (N_EMBD, n_q)}
        parts.update({"ffn_gate": (N_FF, N_EMBD), "ffn_up": (N_FF, N_EMBD), "ffn_down": (N_EMBD, N_FF)})
        for part, shape in parts.items():
            yield f"blk.{layer}.{part}.weight", shape
            if full:
                yield f"blk.{layer}.{part}.bias", shape[:1]
        yield f"blk.{layer}.attn_norm.weight", (N_EMBD,)
        yield f"blk.{layer}.ffn_norm.weight", (N_EMBD,)
    yield "output_norm.weight", (N_EMBD,)
    if full:
        yield "rope_freqs.weight", (8,)
    else:
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
def encoded(kind, full, change):
    """Name, encoded values and type of every tensor. Some tests write hundreds of files of the same weights."""
    draw = np.random.RandomState(20)  # its streams are frozen, those of newer generators are not
    tensors = []
    for name, shape in matrices(full):
        x = values(name, shape, draw).astype(np.float32)
        if change:
            x = change(name, x)
        encoding = GGMLQuantizationType[kind] if len(shape) == 2 else GGMLQuantizationType.F32
        tensors.append((name, quants.quantize(x, encoding), encoding))
    return tensors


def write(path, kind="F32", full=False, context=8192, arch="llama", template=None, change=None, model="gpt2", pre="gpt-2", keys=None, writer=GGUFWriter):
    """`change(name, values)` may alter the values of a tensor before they are encoded, `keys(metadata)` the dictionary of gguf.GGUFValue."""
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
    for name, x, encoding in encoded(kind, full, change):
        writer.add_tensor(name, x, raw_dtype=encoding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


if __name__ == "__main__":
    write(sys.argv[1], *sys.argv[2:3])
