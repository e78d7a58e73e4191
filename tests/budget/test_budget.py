# SPDX-License-Identifier: Apache-2.0
"""Promise P1: the budget is a ceiling, the smallest one is known before anything is read, and it works."""
import json
import os

import pytest
from cgroup import kills, memory_cgroup
from command import REAL, weir, weir_json, weir_measured

MIB = 1 << 20
N_BUDGETS = 12
CONTEXT = ("-c", 512)
RUN = ("Once upon a time, in a", "--raw", "-n", 4, *CONTEXT, "--json")


class Subject:
    """A model and what the plan says of it."""

    def __init__(self, path):
        self.path = path
        self.bytes = path.stat().st_size
        self.header_bytes = min(tensor["offset"] for tensor in weir_json("inspect", path)["tensors"])
        self.min_budget = weir_json("plan", path, *CONTEXT)["min_budget"]

    def budget(self, i):
        """From the smallest that works to twice the file, evenly by ratio."""
        return int(self.min_budget * (2 * self.bytes / self.min_budget) ** (i / (N_BUDGETS - 1)))


@pytest.fixture(scope="module", params=[*REAL, pytest.param("1b-q4_0", marks=pytest.mark.slow), pytest.param("1b-q8_0", marks=pytest.mark.slow)])
def subject(request, scratch):
    if not request.param.startswith("1b"):
        yield Subject(request.getfixturevalue(request.param))
        return
    path = scratch / f"{request.param}.gguf"
    weir("synth", "1b", "--type", request.param[3:], "-o", path, expect=0)
    yield Subject(path)
    path.unlink()


def run_within(budget, *arguments):
    """Runs under the budget, in a cgroup of 16 MiB more where one can be made; checks what the system counted."""
    with memory_cgroup(budget + 16 * MIB) as (group, _):
        result = weir_measured(*arguments, "--memory", budget, cgroup=group, expect=0)
        assert not group or kills(group) in (None, "0"), result.show()
    memory = result.json["memory"]
    assert memory["budget"] == budget
    assert memory["peak_rss"] <= budget, memory
    assert result.usage["max_rss"] <= budget, (result.usage, memory)
    # The command looks a moment before its end, and the kernel counts pages in batches of a thread.
    most = max(memory["peak_rss"], result.usage["max_rss_at_least"])
    assert memory["peak_rss"] - MIB <= result.usage["max_rss"] <= most + MIB, (result.usage, memory)
    assert sum(account["reserved"] for account in memory["accounts"].values()) <= budget, memory
    assert all(account["peak"] <= account["reserved"] for account in memory["accounts"].values()), memory
    return result.json


@pytest.mark.parametrize("i", range(N_BUDGETS))
def test_a1_ceiling(subject, i):
    budget = subject.budget(i)
    done = run_within(budget, "run", subject.path, *RUN)
    assert done["n_generated"] == 4 and done["finish"] == "length"
    if i == 0:
        assert done["residency"]["streamed"] > 0
    if i == N_BUDGETS - 1:
        assert done["residency"]["streamed"] == 0


def drop_cache(path):
    """Writes what is still to be written, then has the system forget the file's pages: reading it is then reading a device."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def test_a3_one_byte_less_is_refused(subject):
    """With exit 3 and the number, before any weight is read: not more than the header passes through a read or comes from the device."""
    runs = []
    for _ in range(3):
        drop_cache(subject.path)
        runs.append(weir_measured("run", subject.path, *RUN, "--memory", subject.min_budget - 1, expect=3))
    refused = runs[0]
    error = refused.json["error"]
    assert error["code"] == "WEIR_E_BUDGET" and error["exit"] == 3
    assert str(subject.min_budget) in error["message"] and str(subject.min_budget - 1) in error["message"], error
    assert error["message"] in refused.err
    least = {counted: min(run.usage[counted] for run in runs) for counted in ("read_bytes", "read_chars")}  # the first may have read the program itself
    assert least["read_chars"] <= subject.header_bytes + MIB, least
    assert least["read_bytes"] <= subject.header_bytes + MIB // 4, (least, subject.header_bytes)


def test_cgroup(smollm2):
    """A group that does not bite would prove nothing about those who survive in it."""
    with memory_cgroup(40 * MIB) as (group, why):
        if not group:
            pytest.skip(f"no memory cgroup can be made ({why}): budgets are checked by VmHWM and rusage alone")
        assert weir_measured("run", smollm2, *RUN, "--memory", "200M", cgroup=group).code == -9
        assert kills(group) in (None, "1")


@pytest.mark.parametrize("megabytes", (1, 12, 20))
def test_a3_far_too_little(real, megabytes):
    error = weir("run", real, *RUN, "--memory", f"{megabytes}M", expect=3).json["error"]
    assert error["code"] == "WEIR_E_BUDGET"
    assert str(weir_json("plan", real, *CONTEXT)["min_budget"]) in error["message"]


@pytest.mark.parametrize("threads", (1, 3))
def test_minimum_is_a_function_of_the_question(real, levels, threads):
    """Not of the CPU level, the I/O engine, the budget asked for, or the command that asks."""
    flags = (*CONTEXT, "-t", threads)
    smallest = weir_json("plan", real, *flags)["min_budget"]
    for level in levels:
        assert weir_json("plan", real, *flags, env={"WEIR_CPU": level})["min_budget"] == smallest, level
    for more in (("--io", "uring"), ("--io", "pread"), ("--direct", "off"), ("--memory", "1G"), ("--memory", smallest)):
        assert weir_json("plan", real, *flags, *more)["min_budget"] == smallest, more
    run_within(smallest, "run", real, *RUN, "-t", threads)


@pytest.mark.parametrize("share", (0, 0.3, 1.2))
def test_long_prompt(real, scratch, share):
    """Prefill in chunks keeps to the budget too."""
    text = scratch / "prompt.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 48)
    smallest = weir_json("plan", real, *CONTEXT)["min_budget"]
    budget = smallest + int(share * real.stat().st_size)
    done = run_within(budget, "run", real, "-f", text, "--raw", "-n", 2, *CONTEXT, "--json")
    assert done["n_prompt"] > 400


def test_eval_writes_logits_within_the_budget(real, scratch):
    ids, logits = scratch / "ids.json", scratch / "budget.npy"
    ids.write_text(json.dumps(list(range(1000, 1200))))
    smallest = weir_json("plan", real, *CONTEXT)["min_budget"]
    run_within(smallest, "eval", real, "--ids", ids, "--logits", logits, *CONTEXT, "--json")
    n_vocab = next(tensor["shape"][1] for tensor in weir_json("inspect", real)["tensors"] if tensor["name"] == "token_embd.weight")
    assert logits.stat().st_size == 200 * n_vocab * 4 + 128
    logits.unlink()


def test_logits_of_a_large_vocabulary(scratch):
    """262,144 words: 64 rows of their logits would be 64 MiB, of which scratch holds a part at a time; the budget does not change them."""
    n_vocab, n = 262144, 70
    model, ids, logits = (scratch / f"words.{end}" for end in ("gguf", "json", "npy"))
    weir("synth", "tiny", "--type", "q4_0", "--vocab", n_vocab, "-o", model, expect=0)
    flags = ("--chunk", 64, "-c", 128)
    plan = weir_json("plan", model, *flags)
    assert plan["chunk"] == 64
    assert plan["memory"]["accounts"]["scratch"]["reserved"] < 12 * MIB, plan["memory"]
    ids.write_text(json.dumps([i * 3371 % n_vocab for i in range(n)]))
    run_within(plan["min_budget"], "eval", model, "--ids", ids, "--logits", logits, *flags, "--json")
    assert logits.stat().st_size == n * n_vocab * 4 + 128
    with open(logits, "rb") as file:
        rows = file.read()[128:]
    different = {rows[i * n_vocab * 4:(i + 1) * n_vocab * 4] for i in range(n)}
    assert len(different) == n, "rows of different positions are equal"
    done = run_within(plan["min_budget"] + model.stat().st_size, "eval", model, "--ids", ids, "--logits", logits, *flags, "--json")
    assert done["n_tokens"] == n
    with open(logits, "rb") as file:
        assert file.read()[128:] == rows
    for path in (model, ids, logits):
        path.unlink()


@pytest.mark.parametrize("context", (16, 300, 2048))
def test_minimum_for_a_context(tiny, context):
    plan = weir_json("plan", tiny, "-c", context)
    assert plan["max_context"] >= plan["kv"]["context"] == context
    done = run_within(plan["min_budget"], "run", tiny, "hello", "--raw", "-n", 4, "-c", context, "--json")
    assert done["kv"]["context"] == context
    weir("run", tiny, "hello", "--raw", "-n", 4, "-c", context, "--memory", plan["min_budget"] - 1, expect=3)


def test_a4_max_context_is_true(real):
    """The context that the plan says would fit does fit, and one block of 16 more does not; with a disk for keys and values it is a longer one."""
    flags = ("--memory", weir_json("plan", real, "-c", 64)["min_budget"] + 40 * MIB, "--kv-disk", 0)
    most = weir_json("plan", real, "-c", 64, *flags)["max_context"]
    trained = next(value for key, value in weir_json("inspect", real)["metadata"].items() if key.endswith(".context_length"))
    assert 64 < most < trained
    run_within(flags[1], "run", real, "hello", "--raw", "-n", 2, "-c", most, *flags[2:], "--json")
    weir("plan", real, "-c", most + 16, *flags, expect=3)
    assert weir_json("plan", real, "-c", 64, *flags[:2])["max_context"] > most
    assert weir_json("plan", real, "-c", most + 16, *flags[:2])["kv"]["on_disk"] > 0


def test_a2_budget_of_a_container(smollm2):
    """Without --memory the budget comes from the cgroup, not from the host, whether or not the page cache is full of the file."""
    with memory_cgroup(160 * MIB) as (group, why):
        if not group:
            pytest.skip(f"no memory cgroup can be made ({why})")
        results = [weir_measured("run", smollm2, *RUN, "--direct", "off", cgroup=group, expect=0) for _ in range(2)]
    for result in results:
        memory = result.json["memory"]
        assert 80 * MIB < memory["budget"] <= 120 * MIB, memory
        assert result.usage["max_rss"] <= memory["budget"]
        assert memory["budget_origin"] in result.err and "cgroup" in memory["budget_origin"], result.err
    assert abs(results[0].json["memory"]["budget"] - results[1].json["memory"]["budget"]) <= MIB


def test_plan_is_what_happens(real):
    """Promise P3: the plan's numbers are those of the run."""
    size = real.stat().st_size
    for budget in (weir_json("plan", real, *CONTEXT)["min_budget"], int(0.6 * size), int(0.9 * size), 2 * size):
        plan = weir_json("plan", real, *CONTEXT, "--memory", budget)
        done = weir_json("run", real, *RUN, "--memory", budget)
        assert done["residency"] == plan["residency"] and done["kv"] == plan["kv"]
        reserved = [{name: account["reserved"] for name, account in j["memory"]["accounts"].items()} for j in (plan, done)]
        assert reserved[0] == reserved[1]
        assert done["io"]["bytes_per_token_planned"] == plan["io"]["bytes_per_token"]
        assert done["io"]["bytes_written"] == 0
