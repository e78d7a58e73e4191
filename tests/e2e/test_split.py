# SPDX-License-Identifier: Apache-2.0
"""Split models (C6): any part or the folder is the whole model, to the bit; parts that are missing, swapped or foreign are named."""
import itertools
import shutil
import subprocess

import numpy as np
import pytest
import raw_gguf
import tiny_model
from command import WEIR, environment, weir, weir_json, weir_measured
from gguf import GGUFWriter
from raw_gguf import U16, Value

TEXT = ("the rain in spain", "--raw", "-n", "12", "--temp", "0", "--spec", "off")
FLAGS = ("-t", "2", "-c", "64")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return tiny_model.write(tmp_path_factory.mktemp("whole") / "tiny.gguf", "Q8_0", full=True)


@pytest.fixture(scope="module")
def content(whole):
    return raw_gguf.parse(whole.read_bytes())


def ids(model, *flags):
    return weir_json("run", model, *TEXT, *FLAGS, *flags)["ids"]


def refused(model, code, *parts):
    done = weir_measured("run", model, *TEXT, *FLAGS, expect=code)
    assert done.err.count("\n") == 1 and all(part in done.err for part in parts), done.show()
    assert done.usage["cpu"] < 2 and done.usage["max_rss"] < 64 << 20, done.usage
    return done.err


def test_raw_gguf_is_exact(whole, content):
    """The tool of these tests against the writer of the gguf package."""
    assert raw_gguf.build(*content) == whole.read_bytes()


@pytest.mark.parametrize("cuts, alignments", [((5, 9), ()), ((0, 12), ()), ((5, 5, 9), (32, 64, 4096, 8)), ((1,), (4096, 16))])
def test_c6_any_part_and_the_folder_load_the_whole(tmp_path, whole, content, cuts, alignments):
    parts = raw_gguf.split(*content, tmp_path, "tiny", cuts, alignments)
    expected = ids(whole)
    assert len(expected) == 12
    for model in (*parts, tmp_path, f"{tmp_path}/"):
        assert ids(model) == expected
    about, one = weir_json("inspect", parts[1]), weir_json("inspect", whole)
    assert [f["path"] for f in about["files"]] == [str(p) for p in parts]
    assert [f["bytes"] for f in about["files"]] == [p.stat().st_size for p in parts] and about["file_bytes"] == sum(p.stat().st_size for p in parts)
    assert [(t["name"], t["type"], t["shape"], t["bytes"]) for t in about["tensors"]] == [(t["name"], t["type"], t["shape"], t["bytes"]) for t in one["tensors"]]
    bounds = [0, *cuts, len(content[1])]
    assert [t["file"] for t in about["tensors"]] == [i for i in range(len(parts)) for _ in range(bounds[i], bounds[i + 1])]
    raw = [p.read_bytes() for p in parts]
    for t, tensor in zip(about["tensors"], content[1]):
        assert raw[t["file"]][t["offset"] : t["offset"] + t["bytes"]] == tensor.data, t
    weir("inspect", "--check", parts[0], expect=0)


def test_c6_as_the_gguf_package_splits(tmp_path, whole):
    """Parts by the writer that the converters use: the first without tensors."""
    class Splitting(GGUFWriter):
        def __init__(self, path, arch):
            super().__init__(path, arch, split_max_tensors=4, small_first_shard=True)

    tiny_model.write(tmp_path / "tiny.gguf", "Q8_0", full=True, writer=Splitting)
    parts = sorted(tmp_path.iterdir())
    assert len(parts) > 3 and parts[0].name.startswith("tiny-00001-of-")
    assert ids(tmp_path) == ids(parts[2]) == ids(whole)


def eval_logits(model, folder, flags):
    (folder / "ids.json").write_text(str([int(i) for i in np.random.RandomState(5).randint(1, 300, size=64)]))
    done = weir_json("eval", model, "--ids", folder / "ids.json", "--logits", folder / "out.npy", "-t", "2", "-c", "64", *flags)
    return done, np.load(folder / "out.npy").view(np.uint32)


def test_c6_promises_hold_over_parts(tmp_path, whole, content, say):
    """P1, P2, P3: budgets from the least on, in memory, with the same bits as the single file, and the bytes a token that were planned."""
    folder = tmp_path / "split"
    folder.mkdir()
    parts = raw_gguf.split(*content, folder, "tiny", (7, 13), (32, 64, 8))
    _, expected = eval_logits(whole, tmp_path, ())
    small = ("--extent", "4096")
    least = weir_json("plan", folder, *FLAGS, *small)["min_budget"]
    assert weir_json("plan", folder, "-t", "2", "-c", "64", *small)["file_bytes"] == sum(p.stat().st_size for p in parts)
    weir("run", folder, *TEXT, *FLAGS, *small, "--memory", least - 1, expect=3)
    n_streamed = 0
    for io, direct, budget in itertools.product(("uring", "pread"), ("auto", "off"), (least, least + (64 << 10), 64 << 20)):
        flags = (*small, "--io", io, "--direct", direct, "--memory", budget)
        done, logits = eval_logits(parts[2], tmp_path, flags)
        assert (logits == expected).all(), flags
        n_streamed += done["residency"]["streamed"] > 0
        run = weir_measured("run", folder, *TEXT, *FLAGS, *flags, "--json", expect=0)
        assert run.usage["max_rss"] <= budget, (run.usage, budget)
        io_of = run.json["io"]
        if done["residency"]["streamed"] > 0:
            assert abs(io_of["bytes_per_token"] - io_of["bytes_per_token_planned"]) * 11 <= weir_json("plan", folder, *FLAGS, *flags)["io"]["ring"] + 8192 * 11
        else:
            assert io_of["bytes_per_token"] == 0
    assert n_streamed >= 8
    say(f"measured: 3 parts, {n_streamed} of 12 runs streaming, equal bits")


@pytest.mark.slow
def test_c6_real_model_in_parts(tmp_path, smollm2, say):
    """Half of the sum of the parts as a budget: the bits of the single file, the reads that were planned."""
    folder = tmp_path / "split"
    folder.mkdir()
    keys, tensors = raw_gguf.parse(smollm2.read_bytes())
    parts = raw_gguf.split(keys, tensors, folder, "smollm2", (len(tensors) // 3, 2 * len(tensors) // 3))
    n_bytes = sum(p.stat().st_size for p in parts)
    flags = ("-t", "2", "-c", "64", "--memory", n_bytes // 2)
    whole, expected = eval_logits(smollm2, tmp_path, flags)
    done, logits = eval_logits(folder, tmp_path, flags)
    assert (logits == expected).all() and min(d["residency"]["streamed"] for d in (done, whole)) > 0
    plan, run = weir_json("plan", folder, *flags), weir_measured("run", parts[1], *TEXT, *flags, "--json", expect=0)
    assert plan["file_bytes"] == n_bytes and run.usage["max_rss"] <= n_bytes // 2, run.usage
    io, of_one = run.json["io"], weir_json("plan", smollm2, *flags)["io"]["bytes_per_token"]
    assert abs(io["bytes_per_token"] - plan["io"]["bytes_per_token"]) * 11 <= plan["io"]["ring"] + 8192 * 11
    assert io["bytes_per_token"] * 11 <= 1.01 * plan["io"]["bytes_per_token"] * 11 + plan["io"]["ring"]
    assert abs(plan["io"]["bytes_per_token"] - of_one) < 0.02 * of_one  # a part's end may cost an extent's end
    shutil.rmtree(folder)
    say(f"measured: smollm2 in 3 parts at 50 %: equal bits, {io['bytes_per_token'] / 1e6:.2f} MB a token, planned {plan['io']['bytes_per_token'] / 1e6:.2f}, as one file {of_one / 1e6:.2f}")


def test_c6_missing_part(tmp_path, content):
    for gone in range(3):
        folder = tmp_path / str(gone)
        folder.mkdir()
        parts = raw_gguf.split(*content, folder, "tiny", (5, 9))
        parts[gone].unlink()
        for model in (*[p for p in parts if p.exists()], folder):
            refused(model, 5, parts[gone].name, f"part {gone + 1} of 3", "No such file")


def test_c6_swapped_and_duplicated(tmp_path, content):
    parts = raw_gguf.split(*content, tmp_path, "tiny", (5, 9))
    second, third = parts[1].read_bytes(), parts[2].read_bytes()
    parts[1].write_bytes(third)
    parts[2].write_bytes(second)
    for model in (*parts, tmp_path):
        refused(model, 1, parts[1].name, "split.no", "is 2")
    parts[1].write_bytes(second)
    refused(parts[0], 1, parts[2].name, "split.no", "is 1")


def test_c6_foreign_part(tmp_path, content):
    """Parts of another model: by its name, by its number of tensors, by its shapes; and a whole model under the name of a part."""
    keys, tensors = content
    parts = raw_gguf.split(keys, tensors, tmp_path, "tiny", (5, 9))
    good = parts[1].read_bytes()

    def with_part(own, its_tensors):
        parts[1].write_bytes(raw_gguf.build(own, its_tensors))

    with_part({**raw_gguf.split_keys(1, 3, len(tensors)), "general.name": Value(8, "another")}, tensors[5:9])
    refused(parts[0], 1, parts[1].name, "general.name", "another model")
    with_part({**raw_gguf.split_keys(1, 3, len(tensors)), "general.architecture": Value(8, "qwen2")}, tensors[5:9])
    refused(parts[1], 1, parts[1].name, "general.architecture", "another model")
    with_part(raw_gguf.split_keys(1, 3, len(tensors) + 1), tensors[5:9])
    refused(tmp_path, 1, parts[1].name, "split.tensors.count", "another model")
    with_part(raw_gguf.split_keys(1, 4, len(tensors)), tensors[5:9])
    refused(parts[0], 1, parts[1].name, "split.count", "is 4")
    with_part(raw_gguf.split_keys(1, 3, len(tensors)), tensors[5:8])
    refused(parts[0], 1, "split.tensors.count", str(len(tensors)), str(len(tensors) - 1))
    with_part(raw_gguf.split_keys(1, 3, len(tensors)), [*tensors[5:8], tensors[2]])
    refused(parts[0], 1, parts[1].name, tensors[2].name, "twice")
    other = raw_gguf.Tensor(tensors[5].name, tensors[5].shape[:-1] + [tensors[5].shape[-1] * 2], tensors[5].type, tensors[5].data * 2)
    with_part(raw_gguf.split_keys(1, 3, len(tensors)), [other, *tensors[6:9]])
    refused(parts[0], 1, parts[1].name, tensors[5].name, "shape")
    with_part(keys, tensors)
    for model in parts:
        refused(model, 1, parts[1].name, "split.", "is missing")
    parts[1].write_bytes(good)
    assert ids(parts[1])


def test_c6_damaged_part(tmp_path, content):
    """What is wrong in a part is said with the part's name."""
    parts = raw_gguf.split(*content, tmp_path, "tiny", (5, 9))
    good = parts[2].read_bytes()
    for cut in (0, 10, 100, len(good) // 2):
        parts[2].write_bytes(good[:cut])
        refused(parts[0], 1, parts[2].name)
    parts[2].write_bytes(b"<!DOCTYPE html><html></html>")
    refused(parts[0], 1, parts[2].name, "web page")


def test_c6_one_part(tmp_path, whole, content):
    keys, tensors = content
    for extra in (raw_gguf.split_keys(0, 1, len(tensors)), {}, raw_gguf.split_keys(0, 0, len(tensors))):
        model = tmp_path / "tiny-00001-of-00001.gguf"
        model.write_bytes(raw_gguf.build({**keys, **extra}, tensors))
        assert ids(model) == ids(tmp_path) == ids(whole)
    model.write_bytes(raw_gguf.build({**keys, **raw_gguf.split_keys(0, 1, 7)}, tensors))
    refused(model, 1, "split.tensors.count", "is 7")


def test_c6_count_of_65535(tmp_path, content):
    keys, tensors = content
    parts = raw_gguf.split(keys, tensors, tmp_path, "tiny", (5, 9))
    many = {**keys, **raw_gguf.split_keys(0, 65535, len(tensors))}
    parts[0].write_bytes(raw_gguf.build(many, tensors[:5]))
    refused(parts[0], 1, parts[0].name, "split.count", "is 65535")
    named = tmp_path / "huge-00001-of-65535.gguf"
    named.write_bytes(raw_gguf.build(many, tensors[:5]))
    refused(named, 4, named.name, "65535", "256")
    plain = tmp_path / "plain.gguf"
    plain.write_bytes(raw_gguf.build(many, tensors[:5]))
    refused(plain, 1, "split.count", "65535", "plain.gguf", "-00001-of-65535.gguf")


def test_c6_renamed_part(tmp_path, content):
    """A part without its name cannot find the others; names that are no part's are taken as they are."""
    parts = raw_gguf.split(*content, tmp_path, "tiny", (5, 9))
    renamed = tmp_path / "renamed.gguf"
    renamed.write_bytes(parts[1].read_bytes())
    refused(renamed, 1, "renamed.gguf", "split.count", "3 parts", "-00002-of-00003.gguf")
    for name in ("tiny-00004-of-00003.gguf", "tiny-00000-of-00003.gguf", "tiny-0001-of-0003.gguf", "tiny-00001-of-00003.GGUF"):
        other = tmp_path / name
        other.write_bytes(parts[0].read_bytes())
        refused(other, 1, name, "split.count")


def test_as_many_parts_as_are_read(tmp_path, whole, content):
    """256 parts, most of them without a tensor."""
    keys, tensors = content
    raw_gguf.split(keys, tensors, tmp_path, "tiny", [len(tensors) * i // 255 for i in range(255)])
    assert len(list(tmp_path.iterdir())) == 256
    assert ids(tmp_path, "--memory", "64M", "--pin", "0", "--extent", "4096") == ids(whole)
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    raw_gguf.split(keys, tensors, tmp_path, "tiny", [1] * 256)
    refused(tmp_path, 4, "257", "256")


def test_too_few_descriptors(tmp_path, content):
    parts = raw_gguf.split(*content, tmp_path, "tiny", [1] * 19)
    words = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", str(WEIR), "run", str(tmp_path), *TEXT]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert done.returncode == 5 and parts[0].name in done.stderr and "process may have 64" in done.stderr and "ulimit -n" in done.stderr and done.stderr.count("\n") == 1, done
    done = subprocess.run([*words, "--direct", "off"], capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert done.returncode == 0, done


def test_folder_as_model(tmp_path, whole, content):
    def folder(name, **files):
        path = tmp_path / name
        path.mkdir()
        for file, raw in files.items():
            (path / file.replace("__", ".")).write_bytes(raw)
        return path

    model = whole.read_bytes()
    assert ids(folder("one", tiny__gguf=model, README__md=b"x", **{"__hidden__gguf": b"y"})) == ids(whole)
    refused(folder("none"), 5, "none", "empty")
    refused(folder("other", README__md=b"x", notes__txt=b"y"), 5, "README.md, notes.txt", "no .gguf")
    refused(folder("two", b__gguf=model, a__gguf=model), 5, "several models", "a.gguf, b.gguf")
    refused(folder("many", **{f"{i}__gguf": b"" for i in range(9)}), 5, "0.gguf, 1.gguf, 2.gguf, ...")
    refused(folder("hf", config__json=b"{}", model__safetensors=b"x"), 4, "model.safetensors", "safetensors", "GGUF")
    split = folder("set", extra__gguf=model)
    raw_gguf.split(*content, split, "tiny", (5, 9))
    refused(split, 5, "extra.gguf, tiny-00001-of-00003.gguf")
    assert ids(split / "extra.gguf") == ids(whole)
    inner = folder("inner")
    (inner / "deep.gguf").mkdir()
    refused(inner, 5, "deep.gguf", "folder")
    long = folder("long", **{c * 240 + "__gguf": model for c in "ab"})
    assert "name one" in refused(long, 5, "several models")


def test_c6_hostile_values_of_split_keys(tmp_path, content):
    """Each split key with values of every width and sign, in the first and in a later part."""
    keys, tensors = content
    for name, part in itertools.product(("split.no", "split.count", "split.tensors.count"), (0, 1)):
        for kind, value in ((U16, 65535), (3, -1), (4, 2**32 - 1), (5, -(2**31)), (10, 2**64 - 1), (11, -(2**63)), (6, 1.0), (7, True), (8, "1"), (9, (4, [1]))):
            parts = raw_gguf.split(keys, tensors, tmp_path, "tiny", (5,))
            own = {**(keys if part == 0 else {}), **raw_gguf.split_keys(part, 2, len(tensors)), name: Value(kind, value)}
            parts[part].write_bytes(raw_gguf.build(own, tensors[:5] if part == 0 else tensors[5:]))
            done = weir("run", parts[0], *TEXT, *FLAGS, expect=1)
            assert name in done.err, done.show()
            assert parts[part].name in done.err or name == "split.tensors.count", done.show()  # which part counted wrong nobody knows
