# SPDX-License-Identifier: Apache-2.0
"""B3: ten needles in one long text, each asked for by a question that follows the whole text. The answers are those that the model is made for.

The text is evaluated once; every question goes back to its end, by tests/tools/resume.c, as a program that uses the library would.
"""
import json
import subprocess

import needle_model
import numpy as np
import pytest
from command import WEIR, environment, weir_json

TILE, SPAN = 256, 4096  # positions of keys and values that attention reduces at a time; after so many it starts anew
N_DEPTHS = 10
MIB = 1 << 20


def depths(n):
    """First, second, around the borders of a tile and of a span, middle, last."""
    wanted = [0, 1, TILE - 1, TILE, TILE + 1, SPAN - 1, SPAN, n // 2, n - 1, n - TILE, n - TILE - 1, n - TILE + 1]
    return list(dict.fromkeys(depth for depth in wanted if depth < n))[:N_DEPTHS]


@pytest.fixture(scope="module")
def needle(tmp_path_factory):
    return needle_model.write(tmp_path_factory.mktemp("needle") / "needle.gguf", 1 << 21)


@pytest.fixture(scope="module")
def resume():
    """Of the same build as the command."""
    path = WEIR.parent / "tests" / "resume"
    assert path.is_file(), f"{path} is not built"
    return path


def ask(resume, needle, folder, n, chunk, *more, kv="f16", timeout=1200):
    """The hash of the logits of every question; each answer is right, and took one row."""
    ids, keys, values = needle_model.hide(n, depths(n))
    (folder / "ids").write_bytes(ids.astype("<i4").tobytes())
    (folder / "asked").write_bytes((needle_model.QUERIES + keys).astype("<i4").tobytes())
    words = [resume, needle, folder / "ids", folder / "asked", f"ctx={n + 1}", f"chunk={chunk}", f"kv={kv}", *more]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=environment(), timeout=timeout, check=False)
    assert done.returncode == 0, (words, done.stderr)
    *rows, end = done.stdout.splitlines()
    rows = [row.split() for row in rows]
    assert [int(top) for top, _, _ in rows] == (needle_model.ANSWERS + values).tolist(), (words, rows)
    assert [int(evaluated) for _, _, evaluated in rows] == [n + 1] + [1] * (len(rows) - 1), rows
    return [hashed for _, hashed, _ in rows], json.loads(end)


def fnv(row):
    value = 0xcbf29ce484222325
    for byte in row.tobytes():
        value = (value ^ byte) * 0x100000001b3 % (1 << 64)
    return f"{value:016x}"


@pytest.fixture(scope="module")
def in_one_pass(needle, tmp_path_factory):
    """The hashes that `ask` gives for a text of 4,095 tokens, each from one pass over text and question in memory."""
    folder, hashes = tmp_path_factory.mktemp("pass"), []
    ids, keys, values = needle_model.hide(SPAN - 1, depths(SPAN - 1))
    for key, value in zip(keys, values):
        (folder / "ids.json").write_text(json.dumps([*ids.tolist(), int(needle_model.QUERIES + key)]))
        weir_json("eval", needle, "--ids", folder / "ids.json", "--logits", folder / "out.npy", "-c", SPAN, "--chunk", SPAN, "--memory", "1G")
        row = np.load(folder / "out.npy")[-1:]
        needle_model.check(row, np.array([value]))
        hashes.append(fnv(row))
    return hashes


def memory_for(needle, folder, n, chunk, kv, share):
    """Options with which one part in `share` of the keys and values has room in memory; None: the least that works has more. share 0: the least."""
    how = ("-c", n + 1, "--chunk", chunk, "--kv", kv, "--kv-dir", folder)
    least = weir_json("plan", needle, *how)["min_budget"]

    def planned(budget):
        plan = weir_json("plan", needle, *how, "--memory", budget)
        return plan, plan["memory"]["accounts"]["kv"]["reserved"]

    plan, reserved = planned(least)
    whole = plan["kv"]["bytes_per_position"] * n
    assert plan["kv"]["on_disk"] > 0
    if share == 0:
        return [f"memory={least}", f"kv-dir={folder}"]
    if reserved > whole / share:
        return None
    budget = least + plan["weight_bytes"] + whole // share - reserved  # weights come before more keys and values
    while planned(budget)[1] > whole / share:
        budget -= 65536
    assert planned(budget)[1] > whole / share / 2 and planned(budget)[0]["kv"]["on_disk"] >= whole * (1 - 1 / share)
    return [f"memory={budget}", f"kv-dir={folder}"]


def compare(resume, needle, folder, n, chunk, shares, say, expected=None, kv="f16", **how):
    """With all keys and values in memory, unless it is known what to expect of that, and with a part of them: right answers, and the same bits."""
    if expected is None:
        expected, end = ask(resume, needle, folder, n, chunk, "memory=2G", kv=kv, **how)
        assert end["bytes_written"] == 0
    found = []
    for share in shares:
        options = memory_for(needle, folder, n, chunk, kv, share)
        if options is None:
            found.append(f"1/{share}: less than weir can do with")
            continue
        hashes, end = ask(resume, needle, folder, n, chunk, *options, kv=kv, **how)
        assert hashes == expected, (share, options)
        found.append(f"{f'1/{share}' if share else 'least'}: {end['bytes_written'] / MIB:.1f} MiB written, {end['bytes_read'] / MIB:.1f} read")
        assert end["bytes_written"] > 0 and {path.name for path in folder.iterdir()} <= {"ids", "asked"}
    say(f"measured: {N_DEPTHS} needles in {n} positions, {kv}, chunk {chunk}: all found, equal bits; keys and values in memory: {'; '.join(found)}")


@pytest.mark.parametrize("chunk", (1, 7, 64, 512))
def test_b3_questions_after_4095(resume, needle, in_one_pass, tmp_path, chunk, say):
    """The question fills a tile, which the next question takes back."""
    assert ask(resume, needle, tmp_path, SPAN - 1, chunk, "memory=1G")[0] == in_one_pass
    compare(resume, needle, tmp_path, SPAN - 1, chunk, [0], say, expected=in_one_pass)


@pytest.mark.parametrize("kv", ("f16", "q8_0"))
def test_b3_questions_after_65536(resume, needle, tmp_path, say, kv):
    compare(resume, needle, tmp_path, 1 << 16, 512, [10, 0], say, kv=kv)


@pytest.mark.full
def test_b3_questions_after_1048576(resume, needle, tmp_path, say):
    compare(resume, needle, tmp_path, 1 << 20, 512, [10, 100], say, timeout=7200)
