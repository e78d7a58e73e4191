# SPDX-License-Identifier: Apache-2.0
"""Contexts larger than memory that other engines went wrong with: A4, A9 and B9. B3 is in test_needles.py and test_known_numbers.py."""
import json
import os
import subprocess

import pytest
import tiny_model
from command import WEIR, environment, weir, weir_json, weir_measured

MIB = 1 << 20
GREEDY = ("--raw", "-n", 4, "--temp", 0)


def folder_of(tmp_path):
    folder = tmp_path / "kv"
    folder.mkdir()
    return folder


# ---- A4: a context is not taken because the file says a million ----

@pytest.mark.parametrize("context", (1 << 20, 1 << 31))
def test_a4_the_disk_is_asked_for(tmp_path, context):
    """With a folder named for it, the default context may use the disk: it is said, it fits both, and what is not needed is not written."""
    model, folder = tiny_model.write(tmp_path / "m.gguf", context=context), folder_of(tmp_path)
    how = ("--memory", "15M", "--kv-dir", folder, "--kv-disk", "1M")
    plan = weir_json("plan", model, *how)
    assert 256 <= plan["kv"]["context"] <= 4096 and plan["kv"]["on_disk"] <= MIB
    done = weir_measured("run", model, "hello", *GREEDY, *how, "--json", cwd=tmp_path, expect=0)
    assert done.json["kv"]["context"] == plan["kv"]["context"] and f"context {plan['kv']['context']}" in done.err, done.show()
    assert done.json["io"]["bytes_written"] == 0 and done.usage["max_rss"] <= 15 * MIB and not list(folder.iterdir())


def test_a4_a_large_context_on_disk(tmp_path):
    """65,536 positions in a budget that holds a part of their keys and values: the room is on the disk, and given back; a text of a few words writes none."""
    model, folder = tiny_model.write(tmp_path / "m.gguf", context=1 << 20), folder_of(tmp_path)
    how = ("-c", 1 << 16, "--kv-dir", folder)
    budget = weir_json("plan", model, *how)["min_budget"]
    plan = weir_json("plan", model, *how, "--memory", budget)
    whole = plan["kv"]["bytes_per_position"] << 16
    assert plan["memory"]["accounts"]["kv"]["reserved"] < whole // 4 and plan["kv"]["on_disk"] >= whole * 3 // 4
    done = weir_measured("run", model, "hello", *GREEDY, *how, "--memory", budget, "--json", expect=0)
    assert done.json["io"]["bytes_written"] == 0 and done.usage["max_rss"] <= budget and not list(folder.iterdir())
    assert done.json["ids"] == weir_json("run", model, "hello", *GREEDY, "-c", 256)["ids"]
    refused = weir_measured("run", model, "hello", *GREEDY, *how, "--memory", budget, "--kv-disk", plan["kv"]["on_disk"] - 1, "--json", expect=3)
    assert "--kv-disk" in refused.json["error"]["message"] and refused.usage["max_rss"] < 20 * MIB, refused.show()


# ---- A9: a conversation grows, memory does not ----

TURNS = 50


def status(pid, name):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def talk(model, *flags):
    """50 turns of a chat; the answers, and what memory the system says after each."""
    words = [str(WEIR), "chat", str(model), "--stdin", "--json", "--temp", "0", "--ignore-eos", "-n", "12", *map(str, flags)]
    answers, memory = [], []
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as chat:
        for turn in range(TURNS):
            chat.stdin.write(f"turn {turn}: tell me more of the rain in the mountains, and who has seen it there\n".encode())
            chat.stdin.flush()
            line = chat.stdout.readline()
            assert line, chat.stderr.read().decode()
            answers.append(json.loads(line)["text"])
            memory.append({name: status(chat.pid, name) for name in ("VmRSS", "VmHWM", "VmSwap", "VmLck")})
        chat.stdin.close()
        err = chat.stderr.read().decode()
        assert chat.wait(60) == 0, err
    return answers, memory, err


def test_a9_fifty_turns(tiny, tmp_path, say):
    """Memory for about ten turns of keys and values: turn 50 answers as with memory for all of them; no more memory than at turn 10, none swapped or locked."""
    folder = folder_of(tmp_path)
    how = ("-c", 8192, "--kv-dir", folder)
    plan = weir_json("plan", tiny, *how)
    small = weir_json("plan", tiny, *how, "--memory", plan["min_budget"])
    assert small["kv"]["on_disk"] > 0, small["kv"]
    answers, memory, err = talk(tiny, *how, "--memory", plan["min_budget"])
    assert "keys and values" in err, err
    expected, resident, _ = talk(tiny, "-c", 8192, "--memory", "1G")
    assert answers == expected and all(answers)
    assert memory[-1]["VmHWM"] <= plan["min_budget"] and memory[-1]["VmRSS"] <= memory[9]["VmRSS"] + MIB, (memory[9], memory[-1])
    assert {m["VmSwap"] + m["VmLck"] for m in memory} == {0}
    grown = resident[-1]["VmRSS"] - resident[9]["VmRSS"]
    say(f"measured: {TURNS} turns of chat: resident size {memory[9]['VmRSS'] / MIB:.1f} MiB after 10, {memory[-1]['VmRSS'] / MIB:.1f} after {TURNS};"
        f" with all keys and values in memory it grew by {grown / MIB:.1f} MiB")
    assert not list(folder.iterdir())


# ---- B9: who has room writes nothing, and who forbids it is obeyed ----

def opened_for_writing(trace):
    calls = [line for line in trace.read_text(errors="replace").splitlines() if "O_WRONLY" in line or "O_RDWR" in line or "O_CREAT" in line or "O_TMPFILE" in line]
    return [line for line in calls if "/dev/" not in line and "ENOENT" not in line]


def strace(trace):
    if subprocess.run(["sh", "-c", "command -v strace"], capture_output=True, check=False).returncode != 0:
        return ()
    return ("strace", "-f", "-qq", "-e", "trace=open,openat,creat,rename,renameat,renameat2,link,linkat", "-o", str(trace))


def test_b9_what_fits_writes_nothing(tiny, tmp_path):
    folder = folder_of(tmp_path)
    done = weir_measured("run", tiny, "hello " * 200, *GREEDY, "-c", 2048, "--memory", "1G", "--kv-dir", folder, "--json", cwd=tmp_path, expect=0)
    assert done.usage["write_bytes"] == 0 and done.json["io"]["bytes_written"] == 0 and done.json["kv"]["on_disk"] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["kv"] and not list(folder.iterdir())
    tool = strace(tmp_path / "trace")
    if tool:
        weir("run", tiny, "hello", *GREEDY, "-c", 2048, "--memory", "1G", "--kv-dir", folder, before=tool, expect=0)
        assert opened_for_writing(tmp_path / "trace") == []


def test_b9_the_switch(tiny, tmp_path):
    """--kv-disk 0: what does not fit into memory is refused, with the switch's name and a budget that works; nothing is written."""
    folder = folder_of(tmp_path)
    how = ("run", tiny, "hello", *GREEDY, "-c", 65536, "--kv-dir", folder)
    budget = weir_json("plan", tiny, "-c", 65536, "--kv-dir", folder)["min_budget"]
    weir(*how, "--memory", budget, expect=0)
    tool = strace(tmp_path / "trace")
    done = weir_measured(*how, "--memory", budget, "--kv-disk", 0, "--json", expect=3)
    assert "--kv-disk" in done.json["error"]["message"] and done.usage["write_bytes"] == 0, done.show()
    needed = weir_json("plan", tiny, "-c", 65536, "--kv-disk", 0)["min_budget"]
    assert needed > budget
    done = weir_measured(*how, "--memory", needed, "--kv-disk", 0, "--json", expect=0)
    assert done.usage["write_bytes"] == 0 and done.json["kv"]["on_disk"] == 0
    if tool:
        weir(*how, "--memory", needed, "--kv-disk", 0, before=tool, expect=0)
        assert opened_for_writing(tmp_path / "trace") == []
    assert not list(folder.iterdir()) and os.listdir(tmp_path).count("kv") == 1
