# SPDX-License-Identifier: Apache-2.0
"""A model whose text is known beforehand: after token t comes follows[t], always.

One layer that adds nothing (its matrices are zero), embeddings that are rows of the unit matrix, and a head that is a permutation of it.
The vocabulary is the caller's; tokens that are not in `follows` are followed by themselves.
"""
import numpy as np
import raw_gguf
from raw_gguf import ARRAY, BOOL, F32, I32, STRING, U32, Tensor, Value

SURE = 50.0  # the logit of the next token is this times the root of n_embd, all others are 0


def write(path, tokens, types, follows, scores=None, merges=None, template=None, context=512, **keys):
    """`keys`: the rest of tokenizer.ggml.*; None leaves a key out."""
    n, n_embd = len(tokens), -(-len(tokens) // 32) * 32
    kinds = {bool: BOOL, int: U32, str: STRING}
    metadata = {"general.architecture": Value(STRING, "llama")}
    numbers = {"block_count": 1, "context_length": context, "embedding_length": n_embd, "feed_forward_length": 32, "attention.head_count": 1, "attention.key_length": 32,
               "attention.value_length": 32, "rope.dimension_count": 32}
    metadata.update({f"llama.{name}": Value(U32, value) for name, value in numbers.items()})
    metadata["llama.attention.layer_norm_rms_epsilon"] = Value(F32, 1e-5)
    metadata.update({f"tokenizer.ggml.{name}": Value(kinds[type(value)], value) for name, value in keys.items() if value is not None})
    for name, element, values in (("tokens", STRING, tokens), ("token_type", I32, types), ("scores", F32, scores), ("merges", STRING, merges)):
        if values is not None:
            metadata[f"tokenizer.ggml.{name}"] = Value(ARRAY, (element, values))
    if template is not None:
        metadata["tokenizer.chat_template"] = Value(STRING, template)
    embedding, head = np.zeros((n, n_embd), np.float32), np.zeros((n, n_embd), np.float32)
    for t in range(n):
        embedding[t, t] = 1
        head[follows.get(t, t), t] = SURE
    tensors = [Tensor("token_embd.weight", [n_embd, n], 0, embedding.tobytes())]
    shapes = {"attn_q": (32, n_embd), "attn_k": (32, n_embd), "attn_v": (32, n_embd), "attn_output": (n_embd, 32), "ffn_gate": (32, n_embd), "ffn_up": (32, n_embd), "ffn_down": (n_embd, 32)}
    for name, (rows, columns) in shapes.items():
        tensors.append(Tensor(f"blk.0.{name}.weight", [columns, rows], 0, bytes(4 * rows * columns)))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        tensors.append(Tensor(f"{name}.weight", [n_embd], 0, np.ones(n_embd, np.float32).tobytes()))
    tensors.append(Tensor("output.weight", [n_embd, n], 0, head.tobytes()))
    path.write_bytes(raw_gguf.build(metadata, tensors))
    return path
