# SPDX-License-Identifier: Apache-2.0
"""What is read: a decode pass reads what is not pinned, once, in large pieces; nothing when everything fits."""
import math

import pytest
from command import REAL, weir, weir_json, weir_measured

MIB = 1 << 20
DECODE_PASSES = 31  # of -n 32: the first token comes from the prefill
FLAGS = ("-c", 256)
RUN = ("Tell me about the sea.", "--raw", "--ignore-eos", "-n", DECODE_PASSES + 1, "--spec", "off")


@pytest.fixture(scope="module", params=[*REAL, pytest.param("8b/1", marks=pytest.mark.slow)])
def model(request, scratch):
    if request.param != "8b/1":
        yield request.getfixturevalue(request.param)
        return
    path = scratch / "reads.gguf"
    weir("synth", "8b", "--layers", 1, "-o", path, expect=0)
    yield path
    path.unlink()


def budget_for(model, share):
    """A budget that pins about this share of what the smallest one streams."""
    smallest = weir_json("plan", model, *FLAGS)["min_budget"]
    return smallest + int(share * weir_json("plan", model, *FLAGS, "--memory", smallest)["residency"]["streamed"])


@pytest.mark.parametrize("share", (0, 0.5, 0.8))
@pytest.mark.parametrize("engine", ("uring", "pread"))
def test_b1_bytes_of_decode(model, share, engine, say):
    budget = budget_for(model, share)
    plan = weir_json("plan", model, *FLAGS, "--memory", budget)
    done = weir_json("run", model, *RUN, *FLAGS, "--memory", budget, "--io", engine)
    io, streamed, ring = done["io"], plan["residency"]["streamed"], plan["io"]["ring"]
    assert done["n_generated"] == DECODE_PASSES + 1 and streamed > 0
    planned = DECODE_PASSES * streamed
    allowed = 1.01 * planned + ring + 8192 * DECODE_PASSES
    counted = io["bytes_per_token_disk"] * DECODE_PASSES  # by the system, from the first to the last decode pass
    say(f"measured: {model.stem} {engine}, {streamed / MIB:.1f} MiB streamed a pass: the system counted {counted / planned:.4f} of the plan")
    if io["direct"]:  # reads through the page cache may never reach the disk
        assert planned - ring <= counted <= allowed, io
    assert abs(io["bytes_per_token"] - plan["io"]["bytes_per_token"]) * DECODE_PASSES <= ring + 8192 * DECODE_PASSES, io
    assert plan["io"]["floor_bytes_per_token"] <= plan["io"]["bytes_per_token"] <= 1.01 * plan["io"]["floor_bytes_per_token"] + 8192


@pytest.mark.parametrize("share", (0, 0.5, 0.8))
def test_b1_size_of_requests(model, share, tmp_path, say):
    """The mean request for streamed weights is 256 KiB at least, planned and counted; the tape is what is streamed."""
    budget = budget_for(model, share)
    plan = weir_json("plan", model, *FLAGS, "--memory", budget, "--tape", tmp_path / "tape")
    tape = [tuple(map(int, line.split())) for line in (tmp_path / "tape").read_text().splitlines()]
    assert sum(n for _, n in tape) == plan["residency"]["streamed"] and len(tape) == plan["io"]["extents"]
    assert all(offset % 4096 == 0 and n % 4096 == 0 and 0 < n <= plan["io"]["extent"] for offset, n in tape)
    tape.sort()
    # Two runs of tensors that are neighbours in the file share the page at their border.
    assert all(a + n - 4096 <= b for (a, n), (b, _) in zip(tape, tape[1:])), "extents overlap"
    done = weir_json("run", model, *RUN, *FLAGS, "--memory", budget)
    io = done["io"]
    # Of all reads, pinned ones are of the same extents; a row is one or two pages.
    large = io["reads"] - math.ceil(io["bytes_read_rows"] / 8192)
    mean = (io["bytes_read_weights"] + io["bytes_read_pinned"]) / large
    planned = plan["residency"]["streamed"] / len(tape)
    say(f"measured: {model.stem}, share {share}: mean request planned {planned / 1024:.0f} KiB, counted {mean / 1024:.0f} KiB")
    assert planned >= 256 * 1024
    assert mean >= 256 * 1024


def test_a11_nothing_is_read_when_everything_fits(model):
    done = weir_json("run", model, *RUN, *FLAGS, "--memory", "4G")
    io = done["io"]
    assert done["residency"]["streamed"] == 0
    assert io["bytes_per_token_disk"] == io["bytes_read_weights"] == io["bytes_per_token"] == io["bytes_read_rows"] == 0, io
    assert io["bytes_read"] == io["bytes_read_pinned"] <= 1.01 * model.stat().st_size


def test_b7_prefill_reads_once_a_chunk(real, tmp_path):
    """Not once a token, and the head only for the chunk that wants logits."""
    ids = tmp_path / "prompt.txt"
    ids.write_text("All work and no play makes Jack a dull boy. " * 18)
    budget = budget_for(real, 0)
    for chunk in (16, 64):
        flags = (*FLAGS, "--chunk", chunk, "--memory", budget + 4 * MIB)
        plan = weir_json("plan", real, *flags)
        done = weir_json("run", real, "-f", ids, "--raw", "-n", 1, *flags)
        passes = math.ceil(done["n_prompt"] / chunk)
        assert passes > 2
        assert done["io"]["bytes_read_weights"] <= plan["residency"]["streamed"] * passes + plan["io"]["ring"], (done["io"], passes)


def test_plan_reads_no_weight(real):
    header = min(tensor["offset"] for tensor in weir_json("inspect", real)["tensors"])
    runs = [weir_measured("plan", real, *FLAGS, expect=0).usage for _ in range(3)]
    assert min(usage["read_chars"] for usage in runs) <= header + MIB, runs
    assert min(usage["read_bytes"] for usage in runs) <= header + 8 * MIB, runs  # the system reads ahead
