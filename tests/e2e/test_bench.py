# SPDX-License-Identifier: Apache-2.0
"""weir bench: what its rows say, that results are checked, and what it refuses. Nothing here looks at a rate: only at what belongs together."""
import math
import re
import signal
import subprocess
import time

import pytest
from command import WEIR, environment, warnings_of, weir, weir_json, weir_measured

FEW = ("--runs", 2, "-t", 2)
MEMBERS = {"shape", "format", "m", "unit", "rate", "ceiling", "bound", "ratio", "verified", "median", "best", "waited", "spread", "noisy", "seconds_compute", "seconds_end_to_end",
           "outputs", "outputs_verified", "max_rel_error", "threads", "isa"}


def check_row(row, unit):
    assert MEMBERS <= set(row), MEMBERS - set(row)
    assert row["unit"] == unit and row["threads"] == 2
    for name in ("rate", "median", "best", "seconds_compute", "seconds_end_to_end"):
        assert math.isfinite(row[name]) and row[name] > 0, name
    assert row["best"] <= row["median"] == row["seconds_end_to_end"]
    assert row["spread"] >= max(row["waited"], 0.04) >= 0 and row["noisy"] == (row["spread"] > 0.1 or (row["ratio"] or 0) > 1)
    if row["ceiling"] is not None:
        assert math.isclose(row["ratio"], row["rate"] / row["ceiling"], rel_tol=1e-12)
        assert row["bound"] in ("compute", "memory")
    assert row["verified"] == (row["outputs"] == row["outputs_verified"])


def test_gemm():
    done = weir_json("bench", "gemm", *FEW, "--shape", "48x256,17x512", "--rows", "1,5")
    formats = weir_json("version")["formats"]
    assert done["bench"] == "gemm" and done["runs"] == 2 and warnings_of(done) == []
    assert [(row["shape"], row["format"], row["m"]) for row in done["rows"]] == [(s, f, m) for s in ("48x256", "17x512") for f in formats for m in (1, 5)]
    for row in done["rows"]:
        check_row(row, "ops/s")
        n, k = map(int, row["shape"].split("x"))
        assert row["verified"] and row["outputs"] == row["m"] * n
        assert math.isclose(row["rate"] * row["median"], 2 * row["m"] * n * k, rel_tol=1e-12)
        # Activations are rounded to 255 steps of a group; float weights are not, their sums have 24 bits.
        floats = row["format"] in ("F32", "F16", "BF16")
        assert 0 < row["max_rel_error"] < (1e-5 if floats else 3e-2), row


def test_gemm_precise_is_nearer():
    plain, precise = (weir_json("bench", "gemm", *FEW, "--shape", "64x256", "--rows", 4, "--type", "q4_0", *more)["rows"][0] for more in ((), ("--precise",)))
    assert precise["verified"] and 0 < precise["max_rel_error"] < plain["max_rel_error"] / 50


def test_gemm_at_every_level(levels):
    for level in levels:
        done = weir_json("bench", "gemm", *FEW, "--shape", "33x256", "--rows", 3, "--cpu", level)
        assert {row["isa"] for row in done["rows"]} == {level}
        assert all(row["verified"] for row in done["rows"])


@pytest.mark.parametrize("kv", ("f16", "f32", "q8_0", "k8v4"))
def test_attention(kv):
    shapes = ("4x2x64", "3x1x96" if kv in ("q8_0", "k8v4") else "3x1x40")
    done = weir_json("bench", "attention", *FEW, "--shape", ",".join(shapes), "--depth", "1,300", "--rows", "1,20", "--kv", kv)
    assert [(row["shape"], row["m"]) for row in done["rows"]] == [(f"{s}@{d}", m) for s in shapes for d in (1, 300) for m in (1, 20)]
    for row in done["rows"]:
        check_row(row, "ops/s")
        heads, _, dim = map(int, row["shape"].split("@")[0].split("x"))
        keys = sum(row["depth"] + i + 1 for i in range(row["m"]))
        assert row["format"] == kv and row["verified"] and row["outputs"] == row["m"] * heads * dim
        assert math.isclose(row["rate"] * row["median"], 4 * keys * heads * dim, rel_tol=1e-12)
        assert row["max_rel_error"] < 1e-5, row


def test_attention_over_spans_and_levels(levels):
    """More than 4096 positions are two spans; all KV types are the default, those that store such heads."""
    for level in levels:
        done = weir_json("bench", "attention", "--runs", 1, "-t", 2, "--shape", "2x1x32,1x1x16", "--depth", 4200, "--rows", 3, "--cpu", level)
        assert [row["format"] for row in done["rows"]] == ["f16", "f32", "q8_0", "k8v4", "f16", "f32"]
        assert all(row["verified"] and row["isa"] == level for row in done["rows"])


@pytest.mark.parametrize("more", ((), ("--precise",)))
def test_layer(more):
    done = weir_json("bench", "layer", *FEW, "--shape", "tiny-256", "--rows", "3,40", "--type", "q4_k,bf16", *more)
    assert [(row["format"], row["m"]) for row in done["rows"]] == [("Q4_K", 3), ("Q4_K", 40), ("BF16", 3), ("BF16", 40)]
    for row in done["rows"]:
        check_row(row, "ops/s")
        m = row["m"]
        weights = 3 * 256 * (256 + 2 * 64 + 256 + 3 * 768)
        assert row["shape"] == "tiny-256/3" and row["layers"] == 3
        assert math.isclose(row["rate"] * row["median"], 2 * m * weights + 3 * 2 * m * (m + 1) * 256, rel_tol=1e-12)
        assert row["outputs"] == m * 256 and row["outputs_verified"] == min(m, 4) * 256
        assert 0 < row["max_rel_error"] < (0.02 if row["format"] == "Q4_K" and not more else 1e-3)


@pytest.mark.parametrize("kv, least, most", (("f32", 0, 1e-3), ("q8_0", 1e-4, 0.02), ("k8v4", 2e-3, 0.4)))
def test_layer_of_every_kv_type(kv, least, most):
    """What keys and values are rounded to is more than all else is, and no defect."""
    done = weir_json("bench", "layer", *FEW, "--shape", "tiny", "--rows", 5, "--type", "q8_0,f16", "--kv", kv, "--precise")
    assert len(done["rows"]) == 2 and all(least < row["max_rel_error"] < most for row in done["rows"]), done


def test_layer_at_every_level_leaves_nothing_behind(levels, scratch):
    for level in levels:
        done = weir_json("bench", "layer", *FEW, "--shape", "tiny", "--rows", 5, "--cpu", level, env={"TMPDIR": scratch})
        assert done["rows"][0]["isa"] == level
    assert not list(scratch.glob("weir-bench*"))
    assert "does not fit" in weir("bench", "layer", "--runs", 1, "-t", 1, "--shape", "1b", "--rows", 1, "--type", "f16", "--memory", "160M", expect=3).err


def test_router():
    done = weir_json("bench", "router", *FEW, "--shape", "mixtral,33x96x5,64x64x64", "--rows", "1,9")
    assert [(row["shape"], row["m"], row["experts"], row["n_embd"], row["top"]) for row in done["rows"]] == [
        (shape, m, *how) for shape, how in (("mixtral", (8, 4096, 2)), ("33x96x5", (33, 96, 5)), ("64x64x64", (64, 64, 64))) for m in (1, 9)]
    for row in done["rows"]:
        check_row(row, "ops/s")
        assert row["verified"] and row["outputs"] == row["m"] * row["experts"]


def test_soak():
    how = ("bench", "soak", "--seconds", 2, "-t", 2, "--shape", "64x256", "--rows", 8)
    (row,) = weir_json(*how)["rows"]
    check_row(row, "ops/s")
    assert row["verified"] and len(row["rates"]) == len(row["clock_hz"]) == 2
    first, last = (rate / row["ceiling"] for rate in row["rates"])
    assert math.isclose(row["first"], first) and math.isclose(row["last"], last) and math.isclose(row["lowest"], min(first, last))
    assert all(1e8 < hz < 1e10 for hz in row["clock_hz"])
    text = weir(*how, expect=0).out.decode()
    assert "rate / ceiling" in text and "lowest" in text


def test_table_and_tsv(scratch):
    path = scratch / "rows.tsv"
    how = ("bench", "gemm", *FEW, "--shape", "16x64", "--rows", "1,2", "--type", "q4_0,f16")
    table = weir(*how, "--tsv", path, expect=0).out.decode().splitlines()
    assert len(table) == 5 and "ratio" in table[0] and all(" yes" in line for line in table[1:])
    plain = weir(*how, "--tsv", "-", expect=0).out.decode()
    for text in (path.read_text(), plain):
        head, *rows = (line.split("\t") for line in text.splitlines())
        assert MEMBERS == set(head) and len(rows) == 4
        assert [dict(zip(head, row))["format"] for row in rows] == ["Q4_0", "Q4_0", "F16", "F16"]
        assert {dict(zip(head, row))["verified"] for row in rows} == {"true"}


def test_columns_stay_where_they_are():
    how = ("--runs", 1, "-t", 1, "--shape", "2x1x8,64x64x2", "--depth", "1,20000", "--rows", 1, "--kv", "f16")
    head, *rows = weir("bench", "attention", *how, expect=0).out.decode().splitlines()
    assert [row.split()[0] for row in rows] == ["2x1x8@1", "2x1x8@20000", "64x64x2@1", "64x64x2@20000"]
    assert {row.index(" f16 ") for row in rows} == {head.index(" format ")}
    assert {row.index(" %  ") for row in rows} == {head.index("  verified") - 2}, (head, rows)


@pytest.mark.parametrize("words, said", [
    ((), "no benchmark"),
    (("gem",), "did you mean 'gemm'"),
    (("nothing",), "weir bench list"),
    (("gemm", "--shape", "4096"), "NxK"),
    (("gemm", "--shape", "16x0"), "NxK"),
    (("gemm", "--shape", "16x48"), "48 are not whole blocks of 32"),
    (("gemm", "--shape", "16x64", "--type", "q4_k"), "64 are not whole blocks of 256"),
    (("gemm", "--rows", "0"), "--rows"),
    (("gemm", "--rows", "1,"), "--rows"),
    (("gemm", "--type", "q9"), "'q9'"),
    (("gemm", "--runs", "0"), "--runs"),
    (("gemm", "--io", "pread"), "no use for --io"),
    (("gemm", "model.gguf"), "one argument too many"),
    (("attention", "--kv", "q8_0", "--shape", "4x2x64,3x1x40"), "3x1x40 have 40"),
    (("attention", "--kv", "k8v4", "--shape", "4x2x64,3x1x40"), "3x1x40 have 40"),
    (("attention", "--shape", "6x4x64"), "multiple of the KV heads"),
    (("attention", "--shape", "4x2x513"), "dimensions 2 to 512"),
    (("attention", "--depth", "0"), "--depth"),
    (("attention", "--type", "q4_0"), "no use for --type"),
    (("stream", "--depth", "1000"), "not a multiple of 256"),
    (("stream", "--shape", "32x5x64"), "multiple of the KV heads"),
    (("stream", "--shape", "4x2x40"), "4x2x40 have 40"),
    (("stream", "--rows", "2000"), "--rows"),
    (("layer", "--shape", "2b"), "weir synth list"),
    (("layer", "--shape", "tiny", "--type", "q4_k"), "not whole blocks"),
    (("router", "--shape", "8x64x9"), "takes 9 of them"),
    (("router", "--shape", "olmo"), "olmoe"),
    (("router", "--shape", ""), "the list is empty"),
    (("router", "--shape", ",".join(["mixtral"] * 33)), "more than 32"),
    (("layer", "--shape", ""), "the list is empty"),
    (("soak", "--rows", "1,2"), "one"),
    (("soak", "--seconds", "0"), "--seconds"),
    (("gemm", "--json", "--tsv", "-"), "standard output"),
])
def test_refused(words, said):
    done = weir("bench", *words, expect=2)
    assert said in done.err and len(done.err.splitlines()) == 1


def test_the_environment_is_for_all_commands():
    weir("bench", "gemm", *FEW, "--shape", "16x64", "--rows", 1, "--type", "q4_0", env={"WEIR_CTX": 512}, expect=0)


def test_memory_bounds_the_process():
    how = ("bench", "gemm", "--runs", 1, "-t", 2, "--rows", 1, "--type", "f32")
    done = weir(*how, "--shape", "4096x8192", "--memory", "128M", expect=3)
    assert "--memory" in done.err and "MiB" in done.err
    weir(*how, "--shape", "64x64", "--memory", "40M", expect=3)
    done = weir_measured(*how, "--shape", "4096x2048", "--memory", "160M", expect=0)
    assert done.usage["max_rss"] <= 160 << 20


MIB = 1 << 20
STREAM = {"layers", "heads", "heads_kv", "head_dim", "positions", "k", "kv", "seconds", "bytes", "ratio_to_disk", "verified", "max_rel_error"}


def one_layer(heads, heads_kv, dim):
    """Bytes of q8_0 of a position: a byte a number and a scale of two bytes for each 32, of keys and of values."""
    return 2 * heads_kv * (dim + dim // 32 * 2)


def check_bound(row):
    """Nothing is faster than reading alone. What overlaps is no slower than the slower of both all along; a model has weights besides."""
    work = row["k"] if "bytes_kv" in row else row["bytes"]
    bound = row["bytes"] / (work / row["ceiling"])
    slower = 0 if "bytes_kv" in row else min(row[name] for name in ("disk_rate_beside", "memory_rate_beside", "memory_rate"))
    assert slower * 0.999 <= bound <= row["disk_rate"] * 1.001 and math.isclose(row["ratio"], row["rate"] / row["ceiling"], rel_tol=1e-6), row


@pytest.mark.parametrize("level", ("scalar", None))
def test_stream_of_one_layer(scratch, level):
    """From the disk, whatever the memory, every block once; right against double precision; a file that is gone afterwards."""
    how = ("--depth", 4096, "--rows", "1,7", "--shape", "8x8x64,8x2x128", "--runs", 2, "-t", 2, "--kv-dir", scratch, *(("--cpu", level) if level else ()))
    before = sorted(scratch.iterdir())
    done = weir_measured("bench", "stream", *how, "--memory", "1G", "--json", expect=0)
    rows = done.json["rows"]
    assert [(row["heads"], row["heads_kv"], row["head_dim"], row["k"]) for row in rows] == [(8, 8, 64, 1), (8, 8, 64, 7), (8, 2, 128, 1), (8, 2, 128, 7)]
    for row in rows:
        heads, heads_kv, dim, k = row["heads"], row["heads_kv"], row["head_dim"], row["k"]
        assert STREAM <= set(row) and row["filled"] == "generated" and row["positions"] == 4096 and row["layers"] == 1 and row["kv"] == "q8_0"
        assert row["bytes"] == 4096 * one_layer(heads, heads_kv, dim)
        assert row["outputs"] == heads * k * dim and row["outputs_verified"] == row["outputs"] and row["verified"] and 0 < row["max_rel_error"] <= 1e-4
        assert math.isclose(row["ratio_to_disk"], row["bytes"] / row["seconds"] / row["disk_rate"], rel_tol=1e-6) and row["bound"] in ("disk", "compute")
        check_bound(row)
    assert done.usage["max_rss"] <= 128 * MIB and sorted(scratch.iterdir()) == before
    assert done.usage["write_bytes"] >= sum(row["bytes"] for row in rows[::2])


def test_stream_of_blocks_larger_than_the_part_in_memory(scratch):
    """A block of 49 MiB: its bound is of one at least."""
    row, = weir_json("bench", "stream", "--shape", "49x49x512", "--kv", "f32", "--depth", 256, "--rows", 1, "--runs", 1, "-t", 2, "--kv-dir", scratch)["rows"]
    assert row["block"] == 256 * 2 * 49 * 512 * 4 and row["memory_rate"] > 0
    check_bound(row)


def test_stream_crossover(scratch):
    """What K rows cost beside one; where that is more than 1.25 times, between which two K it becomes so. 512 rows cannot be free."""
    how = ("bench", "stream", "--depth", 4096, "--rows", "1,2,512,600", "--shape", "8x8x64", "--runs", 1, "-t", 2, "--kv-dir", scratch)
    rows = weir_json(*how)["rows"]
    within = 1
    for row in rows:
        assert math.isclose(row["ratio_to_one"], row["seconds"] / rows[0]["seconds"], rel_tol=1e-6)
        beyond = row["ratio_to_one"] > 1.25 and all(earlier["crossover"] is None for earlier in rows[:rows.index(row)])
        assert within <= row["crossover"] < row["k"] if beyond else row["crossover"] is None, row
        within = row["k"]
    assert [row["crossover"] is None for row in rows].count(False) == 1
    text = weir(*how, expect=0).out.decode()
    assert text.count("times a pass of one row") == 3 and text.count("1.25 times is reached at K = ") == 1, text
    assert all(row["ratio_to_one"] is None and row["crossover"] is None for row in weir_json(*(word if word != "1,2,512,600" else "2,4" for word in how))["rows"])


def test_stream_says_what_it_is(tiny, scratch):
    """The keys and values are of no model: with every row. What was not checked is not verified."""
    how = ("--depth", 8192, "--rows", "1,8", "--runs", 1, "--kv-dir", scratch)
    text = weir("bench", "stream", "--shape", "4x2x64", *how, expect=0).out.decode()
    assert text.count("generated, not computed by a model") == 2 and "NOT VERIFIED" not in text, text
    least = weir_json("plan", tiny, "-c", 8448, "--kv", "q8_0", "--chunk", 8, "--kv-dir", scratch)["min_budget"]
    text = weir("bench", "stream", tiny, *how, "--memory", least + MIB // 2, expect=0).out.decode()
    assert text.count("generated, not computed by a model") == 2 and text.count("NOT VERIFIED") == 2, text
    rows = weir_json("bench", "stream", tiny, *how, "--memory", least + MIB // 2)["rows"]
    for row in rows:
        assert STREAM <= set(row) and row["layers"] == 2 and row["verified"] is False and row["outputs_verified"] == 0 and row["kv_on_disk"] > 0
        check_bound(row)
        assert row["as_reference"] and row["bytes"] == row["bytes_kv"] + row["bytes_weights"] and 0 < row["bytes_kv"] <= row["kv_on_disk"] and row["peak_rss"] <= row["budget"]
    done = weir("bench", "stream", tiny, *how, "--memory", least + MIB // 2, "--chunk", 7)
    assert done.code == 2 and "--chunk 7: 8 rows" in done.err, done.show()
    done = weir("bench", "stream", tiny, *how, "--memory", "1G")
    assert done.code == 2 and "--memory" in done.err, done.show()


def test_list():
    text = weir("bench", "list", expect=0).out.decode()
    assert "gemm" in text and "--shape" in text
    listed = weir_json("bench", "list")["benchmarks"]
    assert [row["name"] for row in listed if row["model"]] == ["decode", "stream"] and all(row["name"] in text and row["description"] in text for row in listed)
    assert {option for row in listed for option in row["options"]} == set(re.findall(r"--(\S+)", text))


def test_interrupt(scratch):
    path = scratch / "never.tsv"
    words = [str(WEIR), "bench", "gemm", "--runs", "1000", "--shape", "256x4096", "--tsv", str(path)]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    time.sleep(1)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130 and b"interrupted" in said
    assert not path.exists() and not list(scratch.glob("*never*"))


@pytest.mark.parametrize("what", (("attention", "--shape", "32x8x128", "--depth", "8192", "--kv", "f16"), ("router", "--shape", "1024x16384x8")), ids=lambda what: what[0])
def test_interrupt_within_a_run(what):
    """A run of minutes, as reference kernels take for it, ends early."""
    words = [str(WEIR), "bench", *what, "--rows", "4096", "--runs", "1", "--cpu", "scalar", "-t", "1", "-v"]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    for line in running.stderr:
        if line.startswith(b"weir: measure"):
            break
    running.send_signal(signal.SIGINT)
    said, errors = running.communicate(timeout=60)
    assert running.returncode == 130 and said == b"" and b"interrupted" in errors


def test_killed_layers_leave_nothing(tmp_path):
    """The model has no name any more when it is measured."""
    words = [str(WEIR), "bench", "layer", "--shape", "1b", "--rows", "4096", "--runs", "1000", "--cpu", "scalar", "-t", "1"]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**environment(), "TMPDIR": str(tmp_path)})
    for wanted in (True, False):
        while running.poll() is None and any(tmp_path.iterdir()) != wanted:
            time.sleep(0.001)
    time.sleep(0.5)
    running.kill()
    running.communicate(timeout=60)
    assert running.returncode == -signal.SIGKILL and not list(tmp_path.iterdir())


def test_two_signals_leave_nothing(tmp_path):
    """The second one ends the command at once: neither the file of --tsv nor the model that layers are of is left."""
    words = [str(WEIR), "bench", "layer", "--shape", "8b", "--rows", "4096", "--runs", "1000", "-t", "2", "--tsv", str(tmp_path / "never.tsv")]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**environment(), "TMPDIR": str(tmp_path)})
    while running.poll() is None and not any(path.name.startswith(".weir-") for path in tmp_path.iterdir()):
        time.sleep(0.01)
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=60)
    assert running.returncode == 130 and not list(tmp_path.iterdir())


def test_links_are_not_followed(tmp_path):
    """Another user may put links into the folder of temporary files."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"kept")
    script = 'for i in 0 1; do ln -s "$TMPDIR/victim" "$TMPDIR/weir-bench-$$-$i.gguf"; done; exec "$@"'
    how = [str(WEIR), "bench", "layer", "--runs", "1", "-t", "1", "--shape", "tiny", "--rows", "5"]
    subprocess.run(["sh", "-c", script, "sh", *how], stdout=subprocess.PIPE, env={**environment(), "TMPDIR": str(tmp_path)}, check=True)
    assert victim.read_bytes() == b"kept" and len(list(tmp_path.iterdir())) == 3
