# SPDX-License-Identifier: Apache-2.0
"""A forward pass of the llama, qwen2 and gemma3 families in numpy: the oracle for logits. Nothing here is shared with the C code.

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
    kv: str = ""        # stored keys and values: f16, q8_0, k8v4; else not rounded
    hadamard: str | None = None  # heads that are rotated before they are stored: k (and q with it), v; None: as the type says
    float32_angles: bool = False  # of RoPE, as float32 programs have them: position times frequency, rounded

    @property
    def rotated(self):
        return {"q8_0": "k", "k8v4": "kv"}.get(self.kv, "") if self.hadamard is None else self.hadamard


EXACT = Rounding()
FLOAT32 = Rounding(float32_angles=True)
DEFAULT = Rounding(127, "f16")
PRECISE = Rounding(32767)  # --precise --kv f32


class Model:
    def __init__(self, path, dtype=np.float32):
        self.reader = GGUFReader(path)
        self.tensors = {t.name: t for t in self.reader.tensors}
        self.dtype = dtype
        self.arch = self.reader.fields["general.architecture"].contents()
        assert self.arch in ("llama", "qwen2", "gemma3"), self.arch
        self.gemma = self.arch == "gemma3"
        self.n_embd, self.n_head, self.n_layer = map(self.key, ("embedding_length", "attention.head_count", "block_count"))
        self.head_dim = self.key("attention.key_length", self.n_embd // self.n_head)
        # The model of 27B parameters scales its scores by a size that is not that of its heads.
        large = self.gemma and self.n_layer == 62
        self.scale = self.key("attention.scale", (self.n_embd / self.n_head if large else self.head_dim) ** -0.5)

    def key(self, name, default=None):
        field = self.reader.fields.get(f"{self.arch}.{name}")
        return default if field is None else field.contents()

    def weight(self, name, rows=slice(None)):
        """[n_out][n_in], or None."""
        t = self.tensors.get(name)
        return None if t is None else dequantize(t.data[rows], t.tensor_type).astype(self.dtype)

    def window(self, layer):
        """How many keys a query of the layer sees, itself counted; None: all."""
        if not self.gemma or not self.key("attention.sliding_window", 0):
            return None
        pattern = self.key("attention.sliding_window_pattern", 6)
        local = pattern[layer] if isinstance(pattern, list) else pattern == 0 or layer % pattern < pattern - 1
        return self.key("attention.sliding_window") if local else None

    def frequencies(self, local):
        """Of RoPE, float32 numbers by definition."""
        n_rot = self.key("rope.dimension_count", self.head_dim)
        base = self.key("rope.freq_base_swa", 10000.0) if local else self.key("rope.freq_base", 10000.0)
        frequency = (1 / base ** (np.arange(0, n_rot, 2) / n_rot)).astype(np.float32)
        factors = self.weight("rope_freqs.weight")
        if factors is not None:
            frequency = frequency / factors.astype(np.float32)
        return frequency if local else frequency / np.float32(self.key("rope.scaling.factor", 1.0))

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


def round_kv(x, kv):
    """Rule g: what is stored of keys or values [n][heads][head_dim]. q8_0 and q4_0 are rule d along head_dim with d as half."""
    if kv == "f16":
        return x.astype(np.float16).astype(x.dtype)
    if not kv:
        return x
    largest = np.float32({"q8_0": 127, "q4_0": 7}[kv])
    groups = x.astype(np.float32).reshape(*x.shape[:2], -1, GROUP)
    amax = np.abs(groups).max(axis=3, keepdims=True)
    seen = amax >= np.float32(2.0**-100)
    q = np.where(seen, np.rint(groups * (largest / np.where(seen, amax, np.float32(1)))), np.float32(0))
    return (q * (amax / largest).astype(np.float16).astype(np.float32)).reshape(x.shape).astype(x.dtype)


def hadamard(x):
    """The normalized Walsh-Hadamard transform along the last axis, in parts of the largest power of two that divides it; its own inverse."""
    n = x.shape[-1] & -x.shape[-1]
    y, step = x.reshape(-1, n), 1
    while step < n:
        pairs = y.reshape(len(y), -1, 2, step)
        y = np.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), axis=2).reshape(len(y), n)
        step *= 2
    return (y * x.dtype.type(n**-0.5)).reshape(x.shape)


def product(model, x, name, weight, rounding, rows=slice(None)):
    """x [n][k] times weight [n_out][k] transposed, and the bias where there is one. `rows` of the tensor are in `weight`."""
    if rounding.activation and model.is_quantized(name):
        x = round_activations(x, rounding.activation)
    y = x @ weight.T
    bias = model.weight("output.bias" if name == model.head else name.replace(".weight", ".bias"))
    return y if bias is None else y + bias[rows]


def rms_norm(model, x, name):
    """Along the last axis."""
    eps = model.dtype(model.key("attention.layer_norm_rms_epsilon"))
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True, dtype=model.dtype) + eps) * model.weight(name)


def rotate(model, x, local, float32_angles):
    """RoPE: x [n][heads][head_dim], row = position. Pairs are (2i, 2i + 1) in llama files, whose rows are permuted for it, else halves."""
    frequency = model.frequencies(local)
    n_half = len(frequency)
    angle = np.arange(len(x), dtype=np.float32)[:, None] * frequency.astype(np.float32 if float32_angles else np.float64)
    cos, sin = (f(angle).astype(model.dtype)[:, None] for f in (np.cos, np.sin))
    y = x.copy()
    first, second = (slice(0, 2 * n_half, 2), slice(1, 2 * n_half, 2)) if model.arch == "llama" else (slice(0, n_half), slice(n_half, 2 * n_half))
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., first] * sin + x[..., second] * cos
    return y


def attend(q, k, v, scale, window):
    """Causal attention: q [n][n_head][d], k and v [n][n_head_kv][d]. A key `window` positions back is not seen."""
    n, n_head, _ = q.shape
    group = n_head // k.shape[1]
    out = np.empty_like(q)
    for begin in range(0, n, QUERY_TILE):
        end = min(begin + QUERY_TILE, n)
        first = 0 if window is None else max(0, begin - window + 1)
        back = np.arange(begin, end)[:, None] - np.arange(first, end)[None, :]
        hidden = back < 0 if window is None else (back < 0) | (back >= window)
        for h in range(n_head):
            s = q[begin:end, h] @ k[first:end, h // group].T
            s *= scale
            s[hidden] = -np.inf
            s -= s.max(axis=1, keepdims=True)
            np.exp(s, out=s)
            out[begin:end, h] = (s @ v[first:end, h // group]) / s.sum(axis=1, keepdims=True)
    return out


def activation(model, gate):
    if model.gemma:
        return 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi).astype(model.dtype) * (gate + model.dtype(0.044715) * gate**3)))
    return gate / (1 + np.exp(-gate))


def hidden_states(model, ids, roundings=(EXACT,)):
    """The normalized states that the head multiplies, [n][n_embd] for each rounding; the layers' weights are decoded once for all."""
    n, scale = len(ids), model.dtype(model.scale)
    states = [model.weight("token_embd.weight", np.asarray(ids)) * model.dtype(model.n_embd**0.5 if model.gemma else 1) for _ in roundings]
    for layer in range(model.n_layer):
        prefix, window = f"blk.{layer}.", model.window(layer)
        parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
        weights = {part: model.weight(f"{prefix}{part}.weight") for part in parts}
        for i, rounding in enumerate(roundings):
            x = states[i]

            def norm(y, part, needed=True):
                return rms_norm(model, y, f"{prefix}{part}.weight") if needed else y

            def times(y, part):
                return product(model, y, f"{prefix}{part}.weight", weights[part], rounding)

            y = norm(x, "attn_norm")
            q, k, v = (times(y, part).reshape(n, -1, model.head_dim) for part in ("attn_q", "attn_k", "attn_v"))
            q, k = norm(q, "attn_q_norm", model.gemma), norm(k, "attn_k_norm", model.gemma)
            q, k = (rotate(model, z, window is not None, rounding.float32_angles) for z in (q, k))
            rotated = rounding.rotated
            q, k, v = (hadamard(z) if part in rotated else z for z, part in ((q, "k"), (k, "k"), (v, "v")))
            k, v = (round_kv(z, kv) for z, kv in zip((k, v), ("q8_0", "q4_0") if rounding.kv == "k8v4" else 2 * (rounding.kv,)))
            y = attend(q, k, v, scale, window)
            y = times((hadamard(y) if "v" in rotated else y).reshape(n, -1), "attn_output")
            x = x + norm(y, "post_attention_norm", model.gemma)
            y = norm(x, "ffn_norm")
            y = times(activation(model, times(y, "ffn_gate")) * times(y, "ffn_up"), "ffn_down")
            states[i] = x + norm(y, "post_ffw_norm", model.gemma)
    return [rms_norm(model, x, "output_norm.weight") for x in states]


def logits(model, states, rounding=EXACT, weight=None, words=slice(None)):
    """[n][words] of hidden states; `weight` is the decoded head of those words, for callers that go through it in tiles."""
    y = product(model, states, model.head, model.weight(model.head, words) if weight is None else weight, rounding, words)
    cap = model.key("final_logit_softcapping")
    return y if cap is None else model.dtype(cap) * np.tanh(y / model.dtype(cap))


def log_softmax(x):
    """In float64, along the last axis of [n][n_vocab]."""
    x = x.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x
