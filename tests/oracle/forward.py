# SPDX-License-Identifier: Apache-2.0
"""A forward pass of the llama family in numpy: the oracle for logits. Nothing here is shared with the C code.

All positions at once, weights decoded by the gguf package, in float32 or float64. A Rounding adds what the engine rounds on
purpose (docs/NUMERICS.md): activations before products with quantized weights (rule d) and stored keys and values (rule g).
"""
import dataclasses

import numpy as np
from gguf import GGUFReader, dequantize

GROUP = 32        # activations that share a scale
QUERY_TILE = 256  # query positions whose scores are in memory at a time
FLOATS = ("F32", "F16", "BF16")


@dataclasses.dataclass(frozen=True)
class Rounding:
    activation: int = 0  # largest integer of an activation: 127, 32767; 0: not rounded
    kv_f16: bool = False
    float32_angles: bool = False  # of RoPE, as float32 programs have them: position times frequency, rounded


EXACT = Rounding()
FLOAT32 = Rounding(float32_angles=True)
DEFAULT = Rounding(127, True)
PRECISE = Rounding(32767, False)  # --precise --kv f32


class Model:
    def __init__(self, path, dtype=np.float32):
        self.reader = GGUFReader(path)
        self.tensors = {t.name: t for t in self.reader.tensors}
        self.dtype = dtype
        arch = self.reader.fields["general.architecture"].contents()
        assert arch == "llama", arch

    def key(self, name, default=None):
        field = self.reader.fields.get(f"llama.{name}")
        return default if field is None else field.contents()

    def weight(self, name, rows=slice(None)):
        """[n_out][n_in], or None."""
        t = self.tensors.get(name)
        return None if t is None else dequantize(t.data[rows], t.tensor_type).astype(self.dtype)

    def is_quantized(self, name):
        return self.tensors[name].tensor_type.name not in FLOATS

    @property
    def head(self):
        return "output.weight" if "output.weight" in self.tensors else "token_embd.weight"


def round_activations(x, largest):
    """Rule d in float32: d = amax / largest, q = rint(x * (largest / amax)), ties to even; gives q * d."""
    groups = x.astype(np.float32).reshape(len(x), -1, GROUP)
    amax = np.abs(groups).max(axis=2, keepdims=True)
    seen = amax >= np.float32(2.0**-100)
    inverse = np.float32(largest) / np.where(seen, amax, np.float32(1))
    q = np.where(seen, np.clip(np.rint(groups * inverse), -largest, largest), np.float32(0))
    return (q * (amax / np.float32(largest))).reshape(x.shape).astype(x.dtype)


def product(model, x, name, weight, rounding):
    """x [n][k] times weight [n_out][k] transposed, and the bias where there is one."""
    if rounding.activation and model.is_quantized(name):
        x = round_activations(x, rounding.activation)
    y = x @ weight.T
    bias = model.weight(name.replace(".weight", ".bias"))
    return y if bias is None else y + bias


def rms_norm(model, x, name):
    eps = model.dtype(model.key("attention.layer_norm_rms_epsilon"))
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True, dtype=model.dtype) + eps) * model.weight(name)


def rotate(model, x, head_dim, float32_angles):
    """RoPE on pairs (2i, 2i + 1): x [n][heads][head_dim], row = position. Frequencies are float32 numbers by definition."""
    n_rot = model.key("rope.dimension_count", head_dim)
    frequency = (1 / model.key("rope.freq_base", 10000.0) ** (np.arange(0, n_rot, 2) / n_rot)).astype(np.float32)
    factors = model.weight("rope_freqs.weight")
    if factors is not None:
        frequency = frequency / factors.astype(np.float32)
    angle = np.arange(len(x), dtype=np.float32)[:, None] * frequency.astype(np.float32 if float32_angles else np.float64)
    cos, sin = (f(angle).astype(model.dtype)[:, None] for f in (np.cos, np.sin))
    y = x.copy()
    even, odd = x[..., 0:n_rot:2], x[..., 1:n_rot:2]
    y[..., 0:n_rot:2] = even * cos - odd * sin
    y[..., 1:n_rot:2] = even * sin + odd * cos
    return y


def attend(q, k, v, scale):
    """Causal attention: q [n][n_head][d], k and v [n][n_head_kv][d]."""
    n, n_head, _ = q.shape
    group = n_head // k.shape[1]
    out = np.empty_like(q)
    for begin in range(0, n, QUERY_TILE):
        end = min(begin + QUERY_TILE, n)
        hidden = np.arange(end)[None, :] > np.arange(begin, end)[:, None]
        for h in range(n_head):
            s = q[begin:end, h] @ k[:end, h // group].T
            s *= scale
            s[hidden] = -np.inf
            s -= s.max(axis=1, keepdims=True)
            np.exp(s, out=s)
            out[begin:end, h] = (s @ v[:end, h // group]) / s.sum(axis=1, keepdims=True)
    return out


def hidden_states(model, ids, roundings=(EXACT,)):
    """The normalized states that the head multiplies, [n][n_embd] for each rounding; the layers' weights are decoded once for all."""
    n, head_dim = len(ids), model.key("attention.key_length", model.key("embedding_length") // model.key("attention.head_count"))
    scale = model.dtype(model.key("attention.scale", head_dim**-0.5))
    states = [model.weight("token_embd.weight", np.asarray(ids)) for _ in roundings]
    for layer in range(model.key("block_count")):
        prefix = f"blk.{layer}."
        parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
        weights = {part: model.weight(f"{prefix}{part}.weight") for part in parts}
        for i, rounding in enumerate(roundings):
            x = states[i]

            def times(y, part):
                return product(model, y, f"{prefix}{part}.weight", weights[part], rounding)

            y = rms_norm(model, x, prefix + "attn_norm.weight")
            q, k, v = (times(y, part).reshape(n, -1, head_dim) for part in ("attn_q", "attn_k", "attn_v"))
            q, k = (rotate(model, z, head_dim, rounding.float32_angles) for z in (q, k))
            if rounding.kv_f16:
                k, v = (z.astype(np.float16).astype(model.dtype) for z in (k, v))
            x = x + times(attend(q, k, v, scale).reshape(n, -1), "attn_output")
            y = rms_norm(model, x, prefix + "ffn_norm.weight")
            gate = times(y, "ffn_gate")
            gate /= 1 + np.exp(-gate)
            states[i] = x + times(gate * times(y, "ffn_up"), "ffn_down")
    return [rms_norm(model, x, "output_norm.weight") for x in states]


def logits(model, states, rounding=EXACT, weight=None):
    """[n][n_vocab] of hidden states; `weight` is the decoded head, for callers that go through it in tiles of rows."""
    return product(model, states, model.head, model.weight(model.head) if weight is None else weight, rounding)


def log_softmax(x):
    """In float64, along the last axis of [n][n_vocab]."""
    x = x.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x
