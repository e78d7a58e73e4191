#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weir's GGUF reader and writer against the gguf package: gguf_check.py TEST_GGUF [MODEL.gguf...]

TEST_GGUF is the built tests/unit/test_gguf: `write FILE` makes a file with weir's writer, `dump FILE` prints what weir's
reader sees. Checked: the package reads what weir wrote, and weir reads what the package wrote (every value type) and any
MODEL given, key by key, element by element, tensor by tensor.
"""
import os
import subprocess
import sys
import tempfile
import numpy as np
import gguf
from gguf import GGMLQuantizationType as T, GGUFValueType as V

FLOATS = (V.FLOAT32, V.FLOAT64)
passed = failed = 0


def check(ok, what):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print("FAILED:", what)


def number(t, v):
    return c_hex(float(v)) if t in FLOATS else str(int(v) - (1 << 64) if int(v) >= 1 << 63 else int(v))


def c_hex(x):  # as C's %a prints doubles
    h = x.hex()
    mantissa, exponent = h.split("p")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}p{exponent}"


def expected(path):
    """The lines of `test_gguf dump`, from GGUFReader."""
    reader = gguf.GGUFReader(path)
    for key, field in reader.fields.items():
        if key.startswith("GGUF."):
            continue
        t = field.types[0]
        if t == V.ARRAY:
            e = field.types[-1] if len(field.types) > 1 else None
            parts = [field.parts[i] for i in field.data]
            if e == V.STRING:
                items = [bytes(p).hex() + "." for p in parts]
            else:
                items = [number(e, p[0]) for p in parts]
            yield f"{key} array {int(e)} {len(items)}" + "".join(" " + i for i in items)
        elif t == V.STRING:
            yield f"{key} string {bytes(field.parts[field.data[0]]).hex()}."
        else:
            yield f"{key} {int(t)} {number(t, field.parts[field.data[0]][0])}"
    for t in reader.tensors:
        yield f"{t.name} {t.tensor_type.name} {' '.join(str(int(d)) for d in t.shape)} at {t.data_offset} {t.n_bytes}"


def compare(tool, path):
    seen = subprocess.run([tool, "dump", path], capture_output=True, text=True)
    check(seen.returncode == 0, seen.stdout)
    lines, wanted = seen.stdout.splitlines(), list(expected(path))
    check(len(lines) == len(wanted), f"{path}: {len(lines)} lines, {len(wanted)} expected")
    for a, b in zip(lines, wanted):
        check(a == b, f"{path}:\n  weir {a[:200]}\n  gguf {b[:200]}")


def write_with_package(path):
    rng = np.random.default_rng(1)
    w = gguf.GGUFWriter(path, "llama")
    w.add_custom_alignment(64)
    for name, t, v in [("u8", V.UINT8, 200), ("i8", V.INT8, -100), ("u16", V.UINT16, 60000), ("i16", V.INT16, -30000), ("u32", V.UINT32, 4000000000),
                       ("i32", V.INT32, -2000000000), ("u64", V.UINT64, 1 << 60), ("i64", V.INT64, -(1 << 60)), ("f32", V.FLOAT32, 0.1), ("f64", V.FLOAT64, 0.1),
                       ("bool", V.BOOL, True), ("string", V.STRING, "grüße\n"), ("long", V.STRING, "x" * 100000)]:
        w.add_key_value("t." + name, v, t)
    w.add_array("t.strings", [f"{i:x}" * (i % 40) for i in range(30000)])
    w.add_array("t.ints", [int(i) for i in rng.integers(-1 << 31, 1 << 31, 70000)])
    w.add_array("t.floats", [float(x) for x in rng.standard_normal(70000).astype(np.float32)])
    w.add_array("t.bools", [True, False, True])
    for i, (shape, t) in enumerate([((3, 5), T.F32), ((4, 64), T.F16), ((2, 3, 64), T.Q4_0), ((7, 32), T.Q4_1), ((5, 96), T.Q8_0), ((2, 2, 2, 32), T.BF16)]):
        x = rng.standard_normal(shape).astype(np.float32)
        if t in (T.F32, T.F16):
            w.add_tensor(f"blk.{i}.weight", x.astype(np.float32 if t == T.F32 else np.float16))
        else:
            w.add_tensor(f"blk.{i}.weight", gguf.quants.quantize(x, t), raw_dtype=t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def check_written(path):
    r = gguf.GGUFReader(path)
    get = lambda k: r.fields[k].contents()
    check(get("general.architecture") == "llama" and get("llama.block_count") == 7 and get("flag") is True, "scalars")
    check(np.float32(get("llama.eps")) == np.float32(1e-5), "f32")
    check(get("words") == [f"word-{i}" for i in range(100000)], "strings")
    check(get("types") == [1, -3, 6, 2147483647], "i32s")
    check([(t.name, t.tensor_type, list(map(int, t.shape))) for t in r.tensors] == [("a", T.Q8_0, [64, 5]), ("b", T.F32, [3]), ("c", T.BF16, [32, 2, 2])], "tensors")
    i = np.arange(5 * 68 + 12 + 256)
    data = (i * 131 + (i >> 8) * 7).astype(np.uint8).tobytes()
    check(b"".join(t.data.tobytes() for t in r.tensors) == data, "data")


if __name__ == "__main__":
    tool, models = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = os.path.join(folder, "theirs.gguf"), os.path.join(folder, "ours.gguf")
        write_with_package(theirs)
        compare(tool, theirs)
        check(subprocess.run([tool, "write", ours]).returncode == 0, "write")
        check_written(ours)
        for path in [ours] + models:
            compare(tool, path)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)
