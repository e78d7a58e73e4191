# SPDX-License-Identifier: Apache-2.0
"""weir bench decode and its controls: what each reads a token, as the system counts it; the same logits from all; budgets kept; what is refused."""
import json
import math
import re

import numpy
import pytest
from cgroup import kills, memory_cgroup
from command import warnings_of, weir, weir_json, weir_measured

MIB = 1 << 20
RUNS, WARM = 4, 2
HOW = ("-c", 64, "-t", 2)
CONTROLS = ("stripe", "stream-all", "lru", "mmap")


@pytest.fixture(scope="module")
def half(dense, tmp_path_factory):
    """The bytes that a pass uses, by the file's own header; a budget of half the file and its plan; one row of each control, run in a group that holds no more."""
    tensors = weir_json("inspect", dense.path)["tensors"]
    used = sum(t["bytes"] for t in tensors if len(t["shape"]) == 2 and t["name"] != "token_embd.weight")
    budget = dense.bytes // 2
    no_profile = {"XDG_CACHE_HOME": tmp_path_factory.mktemp("cache")}  # nor a warning about one
    rows, results = {}, {}
    for control in CONTROLS:
        with memory_cgroup(budget + 16 * MIB) as (group, _):
            results[control] = weir_measured("bench", "decode", dense.path, *HOW, "--runs", RUNS, "--memory", budget, "--control", control, "--json", cgroup=group, env=no_profile, expect=0)
            assert not group or kills(group) in (None, "0")
        (rows[control],) = results[control].json["rows"]
    return used, budget, weir_json("plan", dense.path, *HOW, "--memory", budget), rows, results


def test_bytes_of_each(half, say):
    used, _, plan, rows, results = half
    if not rows["stripe"]["direct"]:
        pytest.skip("this file system does not read directly: what reached the disk says nothing")
    for control in CONTROLS[:3]:
        row = rows[control]
        expected = used - plan["residency"]["pinned"] if control == "stripe" else used  # whatever it keeps, LRU has dropped what comes next
        say(f"measured: --control {control} read {row['bytes_per_token'] / MIB:.2f} MiB a token, {expected / MIB:.2f} expected, {used / MIB:.2f} in all")
        assert math.isclose(row["bytes_per_token"], expected, rel_tol=0.02), row
        assert math.isclose(row["bytes_per_token"], row["bytes_per_token_planned"], rel_tol=0.02), row
        assert results[control].usage["read_bytes"] >= (RUNS + WARM) * row["bytes_per_token"]
    assert rows["stripe"]["bytes_per_token_planned"] < 0.75 * used
    # The same memory: what the stripe pins is slots of the cache, to a slot; two layers take no more.
    assert plan["residency"]["pinned"] + plan["io"]["ring"] - 2 * plan["io"]["extent"] <= rows["lru"]["ring"] <= plan["residency"]["pinned"] + plan["io"]["ring"]
    assert plan["io"]["ring"] < rows["stream-all"]["ring"] <= rows["lru"]["ring"]


def test_same_logits(half, dense, tmp_path):
    """Of all controls, of everything in memory, and of weir eval, whose logits are hashed here."""
    _, _, _, rows, _ = half
    n_vocab = next(t for t in weir_json("inspect", dense.path)["tensors"] if t["name"] == "token_embd.weight")["shape"][1]
    (tmp_path / "ids").write_text(json.dumps([(i * 7919 + 1) % n_vocab for i in range(1 + WARM + RUNS)]))
    weir("eval", dense.path, "--ids", tmp_path / "ids", "--logits", tmp_path / "logits.npy", expect=0)
    expected = 0xcbf29ce484222325
    for byte in numpy.load(tmp_path / "logits.npy")[-1].tobytes():
        expected = (expected ^ byte) * 0x100000001b3 % (1 << 64)
    (whole,) = weir_json("bench", "decode", dense.path, *HOW, "--runs", RUNS, "--memory", "1G")["rows"]
    assert whole["streamed"] == whole["bytes_per_token"] == 0 and whole["bound"] == "memory" and whole["disk_rate"] is None
    assert {row["logits_fnv64"] for row in (*rows.values(), whole)} == {f"{expected:016x}"}


def test_budgets(half):
    _, budget, _, rows, results = half
    for control in CONTROLS:
        result = results[control]
        if control == "mmap":
            assert any("does not bound it" in line for line in result.json["warnings"]), result.show()
            continue
        assert max(result.usage["max_rss"], rows[control]["peak_rss"]) <= budget == rows[control]["budget"], result.show()
        assert warnings_of(result.json) == []


def test_rows(half):
    _, _, _, rows, _ = half
    for control, row in rows.items():
        assert (row["shape"], row["format"], row["m"], row["unit"], row["threads"]) == ("dense.gguf", "Q4_0", 1, "tokens/s", 2)
        assert row["residency"] == control and row["verified"] is False and row["outputs_verified"] == 0 and row["outputs"] == 2000
        assert row["as_reference"] is True and row["max_rel_error"] is None
        assert math.isclose(row["rate"] * row["median"], 1, rel_tol=1e-9) and math.isclose(row["ratio"], row["rate"] / row["ceiling"], rel_tol=1e-9)
        reading = row["bytes_per_token"] / row["disk_rate"]
        assert row["bound"] == ("memory" if reading == 0 else row["bound"]) and row["ceiling"] <= (1.0001 / reading if reading else math.inf)


def test_in_words(dense, tmp_path):
    """Beneath the table, whose columns go with the longest name: sizes, times and rates with their units."""
    path = tmp_path / "a model with a long näme.gguf"
    path.symlink_to(dense.path)
    head, row, *more = weir("bench", "decode", path, "-c", 16, "--runs", 1, "--memory", dense.bytes // 2, expect=0).out.decode().splitlines()
    assert row.startswith(path.name) and head.index("format") == row.index("Q4_0") and head.rindex("verified") == row.rindex("NOT VERIFIED")
    assert re.fullmatch(r"  stripe: pinned \d+\.\d MiB, streamed \d+\.\d MiB, slots of the ring \d+\.\d MiB; budget \d+\.\d MiB, peak \d+\.\d MiB", more[0]), more
    assert re.fullmatch(r"  a token reads \S+ \S+ \(planned \d+\.\d MiB\) by .* and waits \d+\.\d{3} ms for it; the disk gives \d+\.\d\d GB/s, memory gives \d+\.\d\d GB/s", more[1]), more
    assert re.fullmatch(r"  the last logits hash to [0-9a-f]{16} \(FNV-1a\), as those of the reference kernels do", more[2]) and len(more) == 3, more


def test_a_folder_and_an_odd_name(dense, tmp_path):
    """The model may be a folder. A name is a cell of the table: what would end it, or tell a terminal something, is not in it."""
    (tmp_path / "odd\tna\nme\x1b.gguf").symlink_to(dense.path)
    done = weir("bench", "decode", tmp_path, "-c", 16, "--runs", 1, "--memory", dense.bytes // 2, "--tsv", "-", expect=0)
    head, row = (line.split("\t") for line in done.out.decode().splitlines())
    assert len(head) == len(row) and row[0] == "odd?na?me?.gguf", done.show()


@pytest.mark.parametrize("words, code, said", [
    (("--control", "fifo"), 2, "stripe, stream-all, lru, mmap"),
    (("--control", "lru", "--memory", "1G"), 2, "fits into this budget"),
    (("--control", "mmap", "--direct", "on"), 2, "--direct"),
    (("--control", "mmap", "--io", "uring"), 2, "--io"),
    (("--runs", 100), 2, "give -c 151"),
    (("--memory", "13M"), 3, "needs --memory"),
], ids=str)
def test_refused(dense, words, code, said):
    done = weir("bench", "decode", dense.path, "-c", 64, *(() if "--memory" in words else ("--memory", "100M")), *words)
    assert done.code == code and said in done.err and done.out == b"", done.show()


@pytest.mark.parametrize("command", ("run", "chat", "eval", "plan"))
def test_for_measuring_alone(tiny, command):
    done = weir(command, tiny, "--control", "lru")
    assert done.code == 2 and "--control is an option of 'weir bench'" in done.err, done.show()
