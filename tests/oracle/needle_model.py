# SPDX-License-Identifier: Apache-2.0
"""A model that answers exactly, from any distance: a needle token (key, value) anywhere in the text, and at its end a query token for each key.

One layer, one head. Keys lie in the part of the head that is not rotated, so a query scores SCORE above everything else on the needle of its key,
wherever that is, and the logit of the answer with the needle's value is ANSWER, all other logits 0: a key or value that was lost, moved or damaged
shows as a wrong number, not as a text that is slightly worse. Hay has keys and values of its own, small and random.
Every token but the first is one byte of text, so a text of them is tokenized as it was written (text_of).
"""
import numpy as np
import tiny_model
from gguf import GGUFWriter, TokenType

N_KEYS, N_VALUES, N_HAY = 24, 5, 32
N_EMBD, N_FF, HEAD_DIM, N_ROT = 128, 32, 32, 8
SCORE, ANSWER = 40.0, 10.0
HAY = 1
NEEDLES = HAY + N_HAY
QUERIES = NEEDLES + N_KEYS * N_VALUES
ANSWERS = QUERIES + N_KEYS
N_VOCAB = ANSWERS + N_VALUES
FIRST_BYTE = 0x21  # of token 1
# Dimensions of a state: a needle's key, its value, a query's key, the answer, hay.
KEY, VALUE = 0, N_KEYS
QUERY = VALUE + N_VALUES
RESULT = QUERY + N_KEYS
NOISE = RESULT + N_VALUES


def needle(key, value):
    return NEEDLES + key * N_VALUES + value


def tensors():
    draw = np.random.RandomState(5)
    root = np.sqrt(2.0)  # the length of every embedding, so that the norm is the same for all
    embd = np.zeros((N_VOCAB, N_EMBD))
    hay = draw.standard_normal((N_HAY, N_EMBD - NOISE))
    embd[HAY:NEEDLES, NOISE:] = root * hay / np.linalg.norm(hay, axis=1, keepdims=True)
    for key in range(N_KEYS):
        for value in range(N_VALUES):
            embd[needle(key, value), [KEY + key, VALUE + value]] = 1
        embd[QUERIES + key, QUERY + key] = root
    embd[0, NOISE] = embd[ANSWERS:, NOISE] = root
    q, k, v, out = (np.zeros(shape) for shape in ((HEAD_DIM, N_EMBD), (HEAD_DIM, N_EMBD), (HEAD_DIM, N_EMBD), (N_EMBD, HEAD_DIM)))
    for key in range(N_KEYS):
        k[N_ROT + key, KEY + key] = 1
        q[N_ROT + key, QUERY + key] = SCORE * np.sqrt(HEAD_DIM) / root
    for value in range(N_VALUES):
        v[value, VALUE + value] = 1
        out[RESULT + value, value] = root
    k[N_ROT:, NOISE:] = 0.01 * draw.standard_normal((HEAD_DIM - N_ROT, N_EMBD - NOISE))
    v[:, NOISE:] = draw.standard_normal((HEAD_DIM, N_EMBD - NOISE))
    head = np.zeros((N_VOCAB, N_EMBD))
    for value in range(N_VALUES):
        head[ANSWERS + value, RESULT + value] = ANSWER / root
    layer = {"attn_q": q, "attn_k": k, "attn_v": v, "attn_output": out}
    layer.update({"ffn_gate": np.zeros((N_FF, N_EMBD)), "ffn_up": np.zeros((N_FF, N_EMBD)), "ffn_down": np.zeros((N_EMBD, N_FF))})
    yield "token_embd", embd
    for part, x in layer.items():
        yield f"blk.0.{part}", x
    # The norms' weights undo the division: a state of length root, and at the end of a query one of length 2.
    yield "blk.0.attn_norm", np.full(N_EMBD, root / np.sqrt(N_EMBD))
    yield "blk.0.ffn_norm", np.ones(N_EMBD)
    yield "output_norm", np.full(N_EMBD, 2 / np.sqrt(N_EMBD))
    yield "output", head


def write(path, context):
    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_context_length(context)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(N_ROT)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-9)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["<|endoftext|>", *tiny_model.byte_symbols()[FIRST_BYTE:FIRST_BYTE + N_VOCAB - 1]])
    writer.add_token_types([TokenType.CONTROL] + [TokenType.NORMAL] * (N_VOCAB - 1))
    writer.add_token_merges([])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    for name, x in tensors():
        writer.add_tensor(f"{name}.weight", x.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def hide(n, depths):
    """Ids of n tokens of hay with a needle at each depth; the keys, and the values that belong to them, in the order of the depths."""
    draw = np.random.RandomState(n + len(depths))
    assert len(depths) <= N_KEYS and max(depths) < n
    ids = draw.randint(HAY, NEEDLES, size=n)
    keys, values = draw.permutation(N_KEYS)[: len(depths)], draw.randint(0, N_VALUES, size=len(depths))
    ids[depths] = needle(keys, values)
    return ids, keys, values


def text(n, depths):
    """Ids of a text of n tokens with a needle at each depth, in which the last tokens ask for all of them; and the answers' values."""
    ids, keys, values = hide(n - len(depths), depths)
    order = np.random.RandomState(n).permutation(len(depths))
    return [*ids.tolist(), *(QUERIES + keys[order]).tolist()], values[order]


def text_of(ids):
    return (np.asarray(ids) - 1 + FIRST_BYTE).astype(np.uint8).tobytes()


def check(logits, values):
    """The last rows' logits are ANSWER at the value's answer and 0 elsewhere, to what keys and values in halves allow."""
    expected = np.zeros((len(values), N_VOCAB))
    expected[np.arange(len(values)), ANSWERS + values] = ANSWER
    off = np.abs(logits[-len(values):] - expected).max(axis=1)
    assert off.max() < 0.02, f"needles {np.flatnonzero(off >= 0.02).tolist()} of {len(values)}: off by up to {off.max()}"
