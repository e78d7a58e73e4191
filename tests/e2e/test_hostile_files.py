# SPDX-License-Identifier: Apache-2.0
"""Damaged, hostile and strange files given to the command (C1 to C14, B11, B12): one line that names file, place and value; exit code 1, 4 or 5; within
2 s and 64 MiB; never a signal. tests/unit/test_gguf_hostile.c has the same for the reader alone, with many more cases."""
import io
import itertools
import json
import os
import pathlib
import pickle
import random
import shutil
import struct
import subprocess
import tempfile
import zipfile

import pytest
import raw_gguf
import tiny_model
from command import WEIR, instructions, weir, weir_json, weir_measured
from raw_gguf import ARRAY, BOOL, F32, F64, I32, STRING, U8, U32, U64, Tensor, Value

TEXT = ("the rain in spain", "--raw", "-n", "8", "--temp", "0", "-t", "2", "-c", "64")
MODEL_RSS = 64 << 20


@pytest.fixture(scope="module")
def tiny_raw(tmp_path_factory):
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", "Q8_0").read_bytes()


@pytest.fixture(scope="module")
def content(tiny_raw):
    return raw_gguf.parse(tiny_raw)


@pytest.fixture
def give(tmp_path):
    """give(bytes, code, *parts, name=...): the command refuses that file as the house does, and says the parts. Gives the line."""
    def give_file(raw, code, *parts, name="model.gguf"):
        path = tmp_path / name
        path.write_bytes(raw)
        return refused(path, code, name, *parts)

    return give_file


@pytest.fixture
def ids(tmp_path):
    def run(raw, name="good.gguf"):
        path = tmp_path / name
        path.write_bytes(raw)
        return weir_json("run", path, *TEXT)["ids"]

    return run


def refused(model, code, *parts):
    done = weir_measured("run", model, *TEXT)
    said = [line for line in done.err.splitlines() if not line.startswith("weir: warning: ")]
    assert done.code == code and code in (1, 4, 5), done.show()
    assert len(said) == 1 and all(str(part) in said[0] for part in parts), (parts, done.show())
    assert done.usage["cpu"] < 2 and done.usage["max_rss"] < MODEL_RSS, done.usage
    return said[0]


def changed(content, tensors=None, alignment=32, **keys):
    """The file with other keys (None: without it; two underscores for a dot) and tensors."""
    names = {name.replace("__", "."): value for name, value in keys.items()}
    kept = {name: value for name, value in {**content[0], **names}.items() if value is not None}
    return raw_gguf.build(kept, content[1] if tensors is None else tensors, alignment)


def with_tensor(content, name, **fields):
    return changed(content, [Tensor(**{**vars(t), **fields}) if t.name == name else t for t in content[1]])


# ---- C1, C2: sizes and places ----


def test_c1_truncated(give, ids, tiny_raw, content, tmp_path):
    (tmp_path / "good.gguf").write_bytes(tiny_raw)
    about = weir_json("inspect", tmp_path / "good.gguf")["tensors"]
    for cut in range(1, min(t["offset"] for t in about), 241):
        give(tiny_raw[:cut], 1)
    for t in about:
        end = t["offset"] + t["bytes"]
        for cut in (t["offset"], t["offset"] + t["bytes"] // 2, end - 1):
            give(tiny_raw[:cut], 1, t["name"], end, cut, "incomplete")
    expected = ids(tiny_raw)
    assert ids(tiny_raw + b"\xff" * 5000) == expected
    assert ids(tiny_raw + b"\xff") == expected


def test_c1_offsets(give, content):
    last = content[1][-1].name
    for offset, part in ((1 << 40, "incomplete"), (2**64 - 32, "wrap"), (2**63, "incomplete"), (33, "multiple"), (0, "inside tensor")):
        give(with_tensor(content, last, offset=offset), 1, last, part)


def test_c2_products_that_wrap(give, content):
    name = content[1][0].name
    for shape in ((2**42 + 32, 2**22), (2**32, 2**32), (2**63, 2), (2**64 - 1, 1), (32, 2**64 - 1), (2**63 - 32, 3), (2**16, 2**16, 2**16, 2**16), (32, 2**59)):
        give(with_tensor(content, name, shape=list(shape)), 1, name)
    for shape in ((33, 320), (1,), (48, 2)):
        give(with_tensor(content, name, shape=list(shape), type=2), 1, name, "whole blocks", shape[0])


# ---- C3, C4: counts, alignments, dimensions ----


def test_c3_count_bombs(give, content):
    def file(n_tensors, n_keys, rest=b""):
        return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys) + rest

    give(file(0, 2**32), 1, 2**32)
    give(file(2**40, 0), 1, 2**40)
    give(file(2**64 - 1, 2**64 - 1), 1, 2**64 - 1)
    give(file(0, 1, struct.pack("<Q", 2**48)), 1)
    give(file(0, 1, struct.pack("<Q", 2**48) + bytes(100)), 1, "key 1 of 1", 2**48)
    for kind in range(13):
        array = raw_gguf.text("k.ey") + struct.pack("<IIQ", ARRAY, kind, 2**63) + bytes(100)
        give(file(0, 1, array), 4 if kind == ARRAY else 1, "k.ey", 2**63)
    for length in (2**64 - 1, 2**63, 2**32, 200):
        give(file(0, 1, raw_gguf.text("k.ey") + struct.pack("<IQ", STRING, length) + bytes(100)), 1, "k.ey", length)
    nested = raw_gguf.text("k.ey") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 10000
    give(file(0, 1, nested), 4, "k.ey", "nested")


def test_c3_header_beyond_the_budget(tmp_path):
    """Strings that are kept, 125 MiB of holes in the file: refused before they take more than --memory."""
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 2000))
        for i in range(2000):
            file.write(raw_gguf.text(f"k{i}") + struct.pack("<IQ", STRING, 65536))
            file.seek(65536, os.SEEK_CUR)
        file.truncate()
    for budget in (20, 48):
        done = weir_measured("plan", path, "--memory", f"{budget}M", expect=3)
        assert done.err.count("\n") == 1 and "model.gguf" in done.err and "--memory" in done.err, done.show()
        assert done.usage["max_rss"] <= budget << 20 and done.usage["cpu"] < 2, done.usage


def test_c4_alignment(give, ids, content):
    for alignment in (0, 1, 3, 4, 2**31 - 1, 2**32 - 1):
        give(changed(content, general__alignment=Value(U32, alignment)), 1, "general.alignment", alignment)
    give(changed(content, general__alignment=Value(U32, 2**31)), 1, "tensor")
    for kind, value in ((U64, 32), (I32, 32), (STRING, "32"), (F32, 32.0), (BOOL, True)):
        give(changed(content, general__alignment=Value(kind, value)), 1, "general.alignment", "u32")
    expected = ids(changed(content))
    for alignment in (8, 16, 64, 4096):
        assert ids(changed(content, alignment=alignment, general__alignment=Value(U32, alignment))) == expected, alignment


def test_c4_dimensions(give, content):
    name = content[1][0].name
    give(with_tensor(content, name, shape=[0, 320]), 1, name, "dimension 0 is 0")
    give(with_tensor(content, name, shape=[64, 0]), 1, name, "dimension 1 is 0")
    give(with_tensor(content, name, shape=[32] + [1] * 4), 1, name, "5 dimensions")
    give(with_tensor(content, name, shape=[]), 1, name)
    million = with_tensor(content, name, shape=[64, 320]).replace(raw_gguf.text(name) + struct.pack("<I", 2), raw_gguf.text(name) + struct.pack("<I", 10**6), 1)
    give(million, 1, name, "1000000 dimensions")


# ---- C5: the vocabulary ----

ARRAYS = {"tokenizer.ggml.tokens": STRING, "tokenizer.ggml.token_type": I32}


@pytest.mark.parametrize("key", ARRAYS)
def test_c5_arrays(give, ids, content, key):
    element, items = content[0][key].value

    def put(element, items):
        return changed(content, **{key: Value(ARRAY, (element, items))})

    named = key if key.endswith("type") else "tokenizer.ggml.token"  # with one word less it is the types that do not fit
    give(put(element, items[:-1]), 1, named)
    give(put(element, [*items, items[-1]]), 1, named)
    give(put(element, []), 1, named)
    for other, filler in ((U8, 1), (F64, 1.0), (F32, 1.0), (STRING if element != STRING else I32, "1" if element != STRING else 1)):
        give(put(other, [filler] * len(items)), 1, key)
    give(changed(content, **{key: Value(U32, 1)}), 1, key)
    without = changed(content, **{key: None})
    if key.endswith("type"):
        assert len(ids(without)) == 8
    else:
        give(without, 1, key)


def test_c5_scores(give, ids, content):
    """A byte-level vocabulary needs none; what is there must fit."""
    n = len(content[0]["tokenizer.ggml.tokens"].value[1])
    expected = ids(changed(content))
    assert "tokenizer.ggml.scores" not in content[0]
    assert ids(changed(content, tokenizer__ggml__scores=Value(ARRAY, (F32, [0.0] * n)))) == expected
    for element, count in ((F32, n - 1), (F32, n + 1), (F32, 0), (U8, n), (F64, n)):
        give(changed(content, tokenizer__ggml__scores=Value(ARRAY, (element, [0] * count))), 1, "tokenizer.ggml.scores")
    give(changed(content, tokenizer__ggml__scores=Value(ARRAY, (STRING, ["0"] * n))), 1, "tokenizer.ggml.scores")
    give(changed(content, tokenizer__ggml__scores=Value(F32, 0.0)), 1, "tokenizer.ggml.scores")


def test_c5_scores_that_are_needed(give, ids, content):
    """A vocabulary of model llama merges by them: absent, too short, too long, of another type, not a number."""
    n = len(content[0]["tokenizer.ggml.tokens"].value[1])
    spm = {"tokenizer.ggml.model": Value(STRING, "llama"), "tokenizer.ggml.merges": None, "tokenizer.ggml.pre": None}
    spm["tokenizer.ggml.token_type"] = Value(ARRAY, (I32, [2, *[1] * (n - 1)]))
    spm["tokenizer.ggml.unknown_token_id"] = Value(U32, 0)

    def scores(element, items):
        return changed(content, **spm, tokenizer__ggml__scores=Value(ARRAY, (element, items)))

    assert ids(scores(F32, [-float(i) for i in range(n)]))
    give(changed(content, **spm), 1, "tokenizer.ggml.scores", n)
    for element, count in ((F32, n - 1), (F32, n + 1), (F32, 0), (U8, n), (F64, n)):
        give(scores(element, [0] * count), 1, "tokenizer.ggml.scores", n)
    give(scores(STRING, ["0"] * n), 1, "tokenizer.ggml.scores")
    give(scores(F32, [0.0] * (n - 1) + [float("nan")]), 1, "tokenizer.ggml.scores", n - 1, "not a number")


def test_c5_merges(give, content, tmp_path):
    merges = content[0]["tokenizer.ggml.merges"].value[1]
    for bad in ("absent word", "nospace", " e t", "e ", ""):
        give(changed(content, tokenizer__ggml__merges=Value(ARRAY, (STRING, [*merges[:3], bad, *merges[3:]]))), 1, "merge")
    give(changed(content, tokenizer__ggml__merges=Value(ARRAY, (U8, [1] * len(merges)))), 1, "tokenizer.ggml.merges")
    path = tmp_path / "without.gguf"
    path.write_bytes(changed(content, tokenizer__ggml__merges=None))
    assert any("tokenizer.ggml.merges is missing" in line for line in weir_json("run", path, *TEXT)["warnings"])


@pytest.mark.parametrize("key", ["bos", "eos", "eot", "eom", "unknown", "padding", "fim_pad", "fim_rep", "fim_sep"])
def test_c5_special_ids(give, ids, content, key):
    name = f"tokenizer.ggml.{key}_token_id"
    n = len(content[0]["tokenizer.ggml.tokens"].value[1])
    for bad in (n, 2**32 - 1, 2**31):
        give(changed(content, **{name: Value(U32, bad)}), 1, name, bad)
    give(changed(content, **{name: Value(U64, 2**64 - 1)}), 1, name, 2**64 - 1)
    give(changed(content, **{name: Value(I32, -1)}), 1, name, -1)
    assert ids(changed(content, **{name: Value(U32, n - 1)}))


def test_c5_embedding_rows(give, content):
    embedding = next(t for t in content[1] if t.name == "token_embd.weight")
    n, row = embedding.shape[1], len(embedding.data) // embedding.shape[1]
    give(with_tensor(content, embedding.name, shape=[64, n - 1], data=embedding.data[:-row]), 1, embedding.name, n - 1, n)
    give(with_tensor(content, embedding.name, shape=[64, n + 1], data=embedding.data + embedding.data[-row:]), 1, embedding.name, n + 1, n)


# ---- C7, C9, C12: types, keys, versions ----


def test_c7_tensor_types(give, content):
    name = content[1][3].name
    for kind, known in ((4, "Q4_2"), (5, "Q4_3"), (31, "Q4_0_4_4"), (32, "Q4_0_4_8"), (33, "Q4_0_8_8"), (36, "I2_S"), (37, "I8_S"), (38, "TL1"), (39, "MXFP4"), (24, "I8")):
        line = give(with_tensor(content, name, type=kind), 4, name, f"type {kind} ", known)
        assert "newer" not in line, line
    for kind in (43, 255, 2**31, 2**32 - 1):
        give(with_tensor(content, name, type=kind), 4, name, f"type {kind} ", "unknown", "newer weir")


def test_c9_strange_keys(give, ids, content):
    pairs = list(content[0].items())

    def put(name, value):
        return raw_gguf.build([*pairs, (name, value)], content[1])

    give(put("", Value(U32, 1)), 1, "0 bytes")
    give(put("a\0b", Value(U32, 1)), 1, "NUL")
    give(put(b"n" * 65536, Value(U32, 1)), 1, 65536)
    expected = ids(raw_gguf.build(*content))
    for name in ("a\nb", "\x1b[31m", b"\xff\xfe", "n" * 65535):
        for value in (Value(U8, 255), Value(STRING, "x"), Value(F64, float("nan")), Value(ARRAY, (U32, [1, 2])), Value(BOOL, True)):
            assert ids(put(name, value)) == expected
    text = raw_gguf.text("a key") + struct.pack("<I", U32)
    for kind in (13, 255, 2**32 - 1):
        raw = put("a key", Value(U32, 1)).replace(text, raw_gguf.text("a key") + struct.pack("<I", kind))
        give(raw, 1, "a key", kind)
    give(put("a key", Value(BOOL, True)).replace(raw_gguf.text("a key") + b"\7\0\0\0\1", raw_gguf.text("a key") + b"\7\0\0\0\7"), 1, "a key", 7)


def test_keys_and_tensors_that_are_there_twice(give, content):
    pairs = list(content[0].items())
    for name, value in (pairs[0], pairs[5], pairs[-1]):
        give(raw_gguf.build([*pairs, (name, value)], content[1]), 1, name, "twice")
    for t in (content[1][0], content[1][-1]):
        give(raw_gguf.build(pairs, [*content[1], t]), 1, t.name, "twice")


def test_c12_versions(give, tiny_raw):
    def version(v):
        return tiny_raw[:4] + struct.pack("<I", v) + tiny_raw[8:]

    give(version(0), 1, "version 0")
    give(version(1), 4, "version 1", "2023", "newer one of the model")
    give(version(4), 4, "version 4", "newer weir")
    give(version(2**31), 1, "version 2147483648")
    give(b"GGUF", 1, "4 bytes", "24")
    give(b"GG", 1, "2 bytes", "24")
    big_endian = b"GGUF" + struct.pack(">IQQ", 3, 9, 9) + bytes(100)
    give(big_endian, 4, "big-endian", "version 3", "little-endian file")


def test_c12_changed_bytes(tmp_path, tiny_raw, say):
    """A sample of the changes of one byte of the first 4 KiB: it runs, or is refused as it should be."""
    draw = random.Random(11)
    path, codes = tmp_path / "model.gguf", []
    for _ in range(120):
        raw = bytearray(tiny_raw)
        raw[draw.randrange(4096)] = draw.randrange(256)
        path.write_bytes(raw)
        done = weir_measured("run", path, *TEXT)
        assert done.code in (0, 1, 4) and done.usage["cpu"] < 2 and done.usage["max_rss"] < MODEL_RSS, (done.show(), done.usage)
        codes.append(done.code)
    say(f"measured: 120 files with a byte changed: {codes.count(0)} run, {len(codes) - codes.count(0)} are refused")
    assert 5 < codes.count(0) < 115


# ---- C11: safetensors, which are not read ----


def safetensors(header, length=None, data=bytes(16)):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def test_c11_safetensors(give):
    entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    good = safetensors({"a": entry})
    for name in ("model.safetensors", "model.gguf"):
        give(good, 4, "safetensors", "GGUF", name=name)
        for length in (0, 1, len(good), 2**63, 2**64 - 1, 2**32):
            give(safetensors({"a": entry}, length), 1, "safetensors", length, name=name)
    hostile = {
        "inverted": {"a": {**entry, "data_offsets": [16, 0]}}, "gap": {"a": {**entry, "data_offsets": [4, 20]}}, "overlap": {"a": entry, "b": entry},
        "dtype": {"a": {**entry, "dtype": "F99"}}, "twice": b'{"a":1,"a":2}', "invalid": b'{"a":', "deep": b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}",
    }
    for what, header in hostile.items():
        give(safetensors(header), 4, "safetensors", name=f"{what}.safetensors")
    for cut in (0, 1, 7, 8):
        give(good[:cut], 1, name="cut.safetensors")


# ---- C13: mixtures of experts, which are not computed ----


@pytest.mark.parametrize("fused", (True, False))
def test_c13_experts(give, content, fused):
    """Both layouts are good files for somebody: unsupported, by the name of the key, and never called damaged."""
    keys, tensors = dict(content[0]), []
    for t in content[1]:
        part = next((p for p in ("ffn_gate", "ffn_up", "ffn_down") if f".{p}.weight" in t.name), None)
        if part is None:
            tensors.append(t)
        elif fused:
            tensors.append(Tensor(t.name.replace(part, part + "_exps"), [*t.shape, 4], t.type, t.data * 4))
        else:
            tensors += [Tensor(t.name.replace(part, f"{part}.{e}"), t.shape, t.type, t.data) for e in range(4)]
    for layer in range(2):
        tensors.append(Tensor(f"blk.{layer}.ffn_gate_inp.weight", [64, 4], 0, bytes(1024)))
    keys.update({"llama.expert_count": Value(U32, 4), "llama.expert_used_count": Value(U32, 2)})
    line = give(raw_gguf.build(keys, tensors), 4, "llama.expert_count", 4)
    assert "damaged" not in line and "truncated" not in line and "incomplete" not in line
    other = {k.replace("llama.", "qwen3moe."): v for k, v in keys.items()}
    line = give(raw_gguf.build({**other, "general.architecture": Value(STRING, "qwen3moe")}, tensors), 4, "general.architecture", "qwen3moe")
    assert "damaged" not in line and "truncated" not in line and "incomplete" not in line


# ---- C14 and what strangers send ----


def test_c14_odd_things(tmp_path):
    fifo, empty, folder = tmp_path / "fifo", tmp_path / "empty.gguf", tmp_path / "folder"
    os.mkfifo(fifo)
    empty.write_bytes(b"")
    folder.mkdir()
    refused(folder, 5, "folder", "empty")
    refused(empty, 1, "empty.gguf", "the file is empty", "download")
    refused(fifo, 5, "FIFO")
    refused("/dev/zero", 5, "/dev/zero", "character device")
    refused("/dev/null", 5, "/dev/null", "character device")
    refused(tmp_path / "absent.gguf", 5, "absent.gguf", "such file")
    loop = tmp_path / "loop.gguf"
    loop.symlink_to("loop.gguf")
    refused(loop, 5, "loop.gguf")
    refused(tmp_path / ("n" * 300), 5, "too long")


def test_c14_no_permission(tiny_raw):
    """As another user, where the tests run as root."""
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        model, program = pathlib.Path(folder) / "secret.gguf", shutil.copy(WEIR, folder)
        model.write_bytes(tiny_raw)
        model.chmod(0)
        done = subprocess.run([program, "run", model, "x"], capture_output=True, text=True, timeout=60, check=False, **({"user": 65534, "group": 65534} if root else {}))
        assert done.returncode == 5 and "secret.gguf" in done.stderr and "Permission denied" in done.stderr, done


def test_c14_archives(give, tiny_raw):
    plain, torch = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(plain, "w") as z:
        z.writestr("model.gguf", tiny_raw)
    with zipfile.ZipFile(torch, "w") as z:
        z.writestr("archive/data.pkl", pickle.dumps({"a": 1}))
        z.writestr("archive/data/0", bytes(1000))
    give(plain.getvalue(), 1, "zip archive", "unpack", name="model.zip")
    give(torch.getvalue(), 4, "PyTorch", "GGUF", name="pytorch_model.bin")
    for protocol in (2, 3, 4, 5):
        give(pickle.dumps({"a": [1.0] * 50}, protocol=protocol), 4, "PyTorch", name="model.pt")
    for head, what in ((b"\x1f\x8b\x08", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ\0", "xz"), (b"BZh9", "bzip2"), (b"7z\xbc\xaf\x27\x1c", "7z"), (b"Rar!\x1a\7", "rar")):
        give(head + bytes(range(200)), 1, what, "unpack")
    give(bytes(257) + b"ustar" + bytes(300), 1, "tar archive")


def test_what_a_download_leaves(give, tiny_raw):
    give(b"<!DOCTYPE html>\n<html><body>Sign in</body></html>", 1, "web page", "download it again")
    give(b"\xc2\x85" * 3 + "ééé日本語".encode(), 1, "'???ééé日本語'", "download it again")
    give(b"\xef\xbb\xbf \n<HTML lang=en>", 1, "web page")
    give(b"Entry not found", 1, "'Entry not found'", "address")
    give(b'{"error":"Repository not found"}', 1, '{"error":"Repository', "address")
    give(b'{"data":{"x":{"y": 1}}}', 1, "text")
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 144811104\n"
    give(pointer, 1, "Git LFS pointer", "144811104", "git lfs pull")
    give(pointer, 1, "Git LFS pointer", name="model.safetensors")
    give(b"", 1, "the file is empty", "download")
    give(bytes(5000), 1, "zeros", "download")
    give(tiny_raw[: len(tiny_raw) // 2], 1, "incomplete", "curl -C -")
    give(tiny_raw[:1000], 1, "incomplete", "download")
    for magic in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
        give(magic + struct.pack("<I", 1) + bytes(100), 4, "2023", "GGUF")
    give(b"\x89PNG\r\n\x1a\n" + bytes(100), 1, "89 50 4e 47")


# ---- B11, B12: large files, large headers ----


def sparse(path, content, far):
    """The last tensor at least `far` bytes behind the others, with a hole between."""
    keys, tensors = content
    last = tensors[-1]
    head = raw_gguf.build(keys, [*tensors[:-1], Tensor(last.name, last.shape, last.type, last.data, far)])
    plain = raw_gguf.build(keys, tensors[:-1])
    body = sum(-(-len(t.data) // 32) * 32 for t in tensors[:-1])
    with open(path, "wb") as f:
        f.write(head)
        f.seek(len(head) - body + far)
        f.write(last.data)
    assert len(head) > len(plain)
    return path


def test_b11_tensor_past_5_gib(tmp_path, tiny_raw, content):
    far = 5 << 30
    plain = tmp_path / "plain.gguf"
    plain.write_bytes(tiny_raw)
    model = sparse(tmp_path / "sparse.gguf", content, far)
    assert content[1][-1].name == "output.weight" and model.stat().st_size > far
    expected = weir_json("run", plain, *TEXT)["ids"]
    small = ("--extent", "4096", "--pin", "0")
    for flags in ((), ("--io", "pread"), ("--io", "mmap"), ("--direct", "off"), (*small, "--memory", weir_json("plan", model, "-t", "2", "-c", "64", *small)["min_budget"])):
        assert weir_json("run", model, *TEXT, *flags)["ids"] == expected, flags
    plan, of_plain = weir_json("plan", model), weir_json("plan", plain)
    assert plan["file_bytes"] == model.stat().st_size and plan["weight_bytes"] == of_plain["weight_bytes"]
    assert weir_json("inspect", model)["tensors"][-1]["offset"] > far


def test_b11_weights_of_6_gib(tmp_path, content):
    """Sizes above 32 bits in the plan: feed-forward matrices of 1 GiB each, all holes."""
    keys, n_ff = {**content[0], "llama.feed_forward_length": Value(U32, 1 << 22)}, 1 << 22
    tensors, at, starts = [], 0, {}
    for t in content[1]:
        if ".ffn_" in t.name and "norm" not in t.name:
            shape = [n_ff, 64] if "down" in t.name else [64, n_ff]
            tensors.append(Tensor(t.name, shape, 0, b"", at))
            at += 1 << 30
        else:
            tensors.append(Tensor(t.name, t.shape, t.type, t.data, at))
            starts[at] = t.data
            at += -(-len(t.data) // 32) * 32
    head = raw_gguf.build(keys, tensors)
    model = tmp_path / "holes.gguf"
    with open(model, "wb") as f:
        f.write(head)
        for start, data in starts.items():
            f.seek(len(head) + start)
            f.write(data)
        f.truncate(len(head) + at)
    plan = weir_json("plan", model, "--memory", "2G")
    streamed, pinned = plan["residency"]["streamed"], plan["residency"]["pinned"]
    assert plan["file_bytes"] == len(head) + at > 6 << 30 and plan["weight_bytes"] > 6 << 30
    assert (6 << 30) - (2 << 30) < streamed < 6 << 30 and streamed + pinned > 6 << 30 and plan["io"]["bytes_per_token"] >= streamed


def large_header(path, n_tokens, n_merges, n_layers):
    """A model of tiny layers and a large vocabulary: words of a few letters, each merged from a shorter one and a letter."""
    spelled = itertools.chain.from_iterable(map("".join, itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=n)) for n in range(1, 6))
    words = list(itertools.islice(spelled, n_tokens))
    merges = [f"{word[:-1]} {word[-1]}" for word in words[26 : 26 + n_merges]]
    keys = {
        "general.architecture": Value(STRING, "llama"), "llama.block_count": Value(U32, n_layers), "llama.context_length": Value(U32, 512),
        "llama.embedding_length": Value(U32, 32), "llama.feed_forward_length": Value(U32, 32), "llama.attention.head_count": Value(U32, 1),
        "llama.attention.layer_norm_rms_epsilon": Value(F32, 1e-5), "tokenizer.ggml.model": Value(STRING, "gpt2"), "tokenizer.ggml.pre": Value(STRING, "gpt-2"),
        "tokenizer.ggml.tokens": Value(ARRAY, (STRING, words)), "tokenizer.ggml.token_type": Value(ARRAY, (I32, [1] * n_tokens)),
        "tokenizer.ggml.merges": Value(ARRAY, (STRING, merges)),
    }
    matrix, norm = bytes(32 * 18), bytes(128)
    tensors = [Tensor("token_embd.weight", [32, n_tokens], 2, bytes(18 * n_tokens)), Tensor("output_norm.weight", [32], 0, norm)]
    for layer in range(n_layers):
        tensors += [Tensor(f"blk.{layer}.{p}.weight", [32, 32], 2, matrix) for p in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")]
        tensors += [Tensor(f"blk.{layer}.{p}.weight", [32], 0, norm) for p in ("attn_norm", "ffn_norm")]
    path.write_bytes(raw_gguf.build(keys, tensors))
    return len(words), len(merges), len(tensors)


def test_b12_large_header(tmp_path, say):
    """From the start of the command to its end: the plan (header and graph) and a word's ids (vocabulary and merges). Twice of all takes at most 2.3 times
    the instructions; the seconds also grow by what tables cost that no longer fit the processor's caches."""
    commands, work = (("plan", "-c", "64"), ("tokenize", "abcd")), []
    for size in (1, 2):
        model = tmp_path / f"{size}.gguf"
        counts = large_header(model, 500000 * size, 300000 * size, 555 * size)
        assert counts[0] == 500000 * size and counts[1] == 300000 * size and counts[2] >= 4990 * size
        seconds = sum(min(weir_measured(command, model, *flags, expect=0).usage["cpu"] for _ in range(3)) for command, *flags in commands)
        say(f"measured: {counts[0]} words, {counts[1]} merges, {counts[2]} tensors: plan and tokenize {seconds:.2f} s of processor time")
        assert seconds < 3 * size  # a third of it on an idle machine
        work.append([sum(instructions("main", command, model, *flags)) for command, *flags in commands])
    ratios = [twice / once for once, twice in zip(*work)]
    say(f"measured: twice the header takes {ratios[0]:.3f} times the instructions for a plan, {ratios[1]:.3f} times for ids")
    assert max(ratios) <= 2.3, work


def test_b12_most_tensors(tmp_path, say):
    """The most tensors that are read, in falling order of their places: their sort takes n log n."""
    work = []
    for n in (1 << 17, 1 << 18):
        keys = {"general.architecture": Value(STRING, "llama"), "tokenizer.ggml.model": Value(STRING, "gpt2"), "tokenizer.ggml.tokens": Value(ARRAY, (STRING, ["a"]))}
        raw = raw_gguf.build(keys, [Tensor(f"t{i}", [8], 0, b"", (n - 1 - i) * 32) for i in range(n)])
        (tmp_path / "m.gguf").write_bytes(raw + bytes(32 * n))
        work += instructions("wr_catalog_open", "tokenize", tmp_path / "m.gguf", "a")
    say(f"measured: {n} tensors: {work[1] / n:.0f} instructions each, {work[1] / work[0]:.3f} times those of half as many")
    assert work[1] <= 2.3 * work[0]
