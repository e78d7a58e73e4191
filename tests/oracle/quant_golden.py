#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden hashes of the weight decoders, from the gguf package (numpy), for tests/unit/test_quant.c.

Per format: blocks from an LCG with a seed of its own, decoded by gguf.quants.dequantize; FNV-1a 64 over the f32 outputs,
little-endian, each NaN replaced by the bits 7fc00000 (payloads are no part of a format). Prints the rows of the test's table;
with --check FILE it verifies that every row is in that file.
"""
import sys
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize

ROWS = [  # type, bytes a block, number of blocks; every 16-bit pattern for the float formats
    (T.F16, 2, 65536), (T.BF16, 2, 65536), (T.Q4_0, 18, 3000), (T.Q4_1, 20, 3000), (T.Q5_0, 22, 3000), (T.Q5_1, 24, 3000),
    (T.Q8_0, 34, 3000), (T.Q2_K, 84, 400), (T.Q3_K, 110, 400), (T.Q4_K, 144, 400), (T.Q5_K, 176, 400), (T.Q6_K, 210, 400), (T.TQ2_0, 66, 400)]


def generate(seed, n):
    out = np.empty(n, np.uint8)
    s = seed
    for i in range(n):
        s = (s * 1664525 + 1013904223) & 0xFFFFFFFF
        out[i] = s >> 24
    return out


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def rows():
    for t, size, n in ROWS:
        if t in (T.F16, T.BF16):
            raw = np.arange(65536, dtype=np.uint16).view(np.uint8)
        else:
            raw = generate(0x51554E54 + int(t), size * n)
        if t == T.F16:  # dequantize() of F16 keeps halves in some versions
            y = raw.view(np.float16).astype(np.float32)
        else:
            y = dequantize(raw.reshape(1, -1), t).astype(np.float32).ravel()
        bits = y.view(np.uint32).copy()
        bits[np.isnan(y)] = 0x7FC00000
        yield f"{{WR_TYPE_{t.name}, {n}, 0x{fnv(bits.tobytes()):016x}}}"


if __name__ == "__main__":
    with np.errstate(all="ignore"):  # random scales hold infinities
        made = list(rows())
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        text = open(sys.argv[2]).read()
        missing = [r for r in made if r not in text]
        print(f"{len(made) - len(missing)} passed, {len(missing)} failed")
        sys.exit(1 if missing else 0)
    print("\n".join(made))
