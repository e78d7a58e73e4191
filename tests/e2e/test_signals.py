# SPDX-License-Identifier: Apache-2.0
"""Interruption, and readers and devices that go away."""
import json
import os
import signal
import subprocess
import time

import pytest
from command import WEIR, environment, weir, weir_json

LONG = ("--raw", "-c", 100_000, "--ignore-eos", "--memory", "1G")  # minutes of generation


def start(*arguments, **how):
    return subprocess.Popen([str(WEIR), *map(str, arguments)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment(), **how)


def finish(process, seconds=120):
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise


@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM))
def test_interrupt_while_text_comes(tiny, number):
    """Exit 130, and what was printed is the beginning of what would have been."""
    process = start("run", tiny, "hello", *LONG, stdout=subprocess.PIPE)
    begin = os.read(process.stdout.fileno(), 1)
    process.send_signal(number)
    out, err = finish(process)
    assert process.returncode == 130, err
    expected = weir("run", tiny, "hello", *LONG[:-2], "--memory", "1G", "-n", 400, expect=0).out
    n = min(len(expected), 1 + len(out))
    assert (begin + out)[:n] == expected[:n]
    assert b"error" not in err


def test_nohup(tiny):
    """A terminal that goes away does not end what was started to outlive it."""
    how = ("run", tiny, "hello", "--raw", "-n", 400, "-c", 1000, "--ignore-eos", "--memory", "1G")
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", str(WEIR), *map(str, how)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment())
    begin = os.read(process.stdout.fileno(), 1)
    process.send_signal(signal.SIGHUP)
    out, err = finish(process)
    assert process.returncode == 0, err
    assert begin + out == weir(*how, expect=0).out


def wait_until_it_computes(process):
    """The command says nothing while it makes JSON: its processor time tells that it generates."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with open(f"/proc/{process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        if int(fields[11]) + int(fields[12]) >= 30:  # ticks of 10 ms
            return
        time.sleep(0.02)
    raise AssertionError("it does not start")


def wait_until_it_handles_signals(process):
    handled = 0
    while not handled & 1 << (signal.SIGINT - 1):
        with open(f"/proc/{process.pid}/status", encoding="ascii", errors="replace") as status:
            handled = int(next(line for line in status if line.startswith("SigCgt")).split()[1], 16)
        time.sleep(0.01)


def test_interrupt_with_json(tiny):
    """One whole object, finish `interrupted`, with everything that was generated."""
    process = start("run", tiny, "hello", *LONG, "--json", stdout=subprocess.PIPE)
    wait_until_it_computes(process)
    process.send_signal(signal.SIGINT)
    out, err = finish(process)
    assert process.returncode == 130, err
    done = json.loads(out)
    assert done["finish"] == "interrupted" and done["n_generated"] == len(done["ids"]) > 0
    again = weir_json("run", tiny, "hello", *LONG[:-2], "--memory", "1G", "-n", min(50, done["n_generated"]))
    assert again["ids"] == done["ids"][:50]


def test_interrupt_while_logits_are_written(tiny, tmp_path):
    """No file, not even a part of one."""
    (tmp_path / "ids").write_text(json.dumps([5] * 50_000))
    process = start("eval", tiny, "--ids", tmp_path / "ids", "-c", 50_000, "--logits", tmp_path / "out.npy", stdout=subprocess.PIPE)
    wait_until_it_computes(process)
    process.send_signal(signal.SIGINT)
    out, err = finish(process)
    assert process.returncode == 130 and out == b"", err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ids"]


def test_interrupt_while_reading_standard_input(tiny):
    read, write = os.pipe()
    process = subprocess.Popen([str(WEIR), "run", str(tiny), "--raw", "-n", "1"], stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    os.close(read)
    wait_until_it_handles_signals(process)
    time.sleep(0.5)  # now it reads
    process.send_signal(signal.SIGINT)
    finish(process)
    os.close(write)
    assert process.returncode == 130


def test_interrupted_synth_leaves_nothing(tmp_path):
    process = start("synth", "8b", "-o", tmp_path / "big.gguf", stdout=subprocess.PIPE)
    wait_until_it_computes(process)
    process.send_signal(signal.SIGINT)
    finish(process)
    assert process.returncode == 130
    assert not list(tmp_path.iterdir())


def test_reader_that_goes_away(tiny):
    """As with every filter: no error, no message, and an end."""
    process = start("run", tiny, "hello", *LONG, stdout=subprocess.PIPE)
    os.read(process.stdout.fileno(), 1)
    process.stdout.close()
    _, err = finish(process)
    assert process.returncode == 0 and b"error" not in err, (process.returncode, err)


def in_shell(script, *words, **how):
    """Runs `script` with the command and `words` as "$0" "$@"."""
    return subprocess.run(["sh", "-c", script, str(WEIR), *map(str, words)], stdin=subprocess.DEVNULL, env=environment(), timeout=60, check=False, **how)


@pytest.mark.parametrize("command", ("run MODEL hello --raw -n 4", "run MODEL hello --raw -n 4 --json", "plan MODEL", "tokenize MODEL hello", "help"))
def test_full_and_closed_output(tiny, command):
    """A device that is full, a descriptor that is closed: an error of its own, never success and never a signal."""
    words = [tiny if word == "MODEL" else word for word in command.split()]
    done = in_shell('exec "$0" "$@" >/dev/full', *words, stderr=subprocess.PIPE)
    assert done.returncode == 5 and b"No space left" in done.stderr, done
    done = in_shell('exec "$0" "$@" >&-', *words, stderr=subprocess.PIPE)
    assert done.returncode == 5 and b"weir: error: " in done.stderr, done


def test_closed_standard_error(tiny):
    """Nobody to hear the notice is no reason to stop."""
    done = in_shell('exec "$0" "$@" 2>&-', "run", tiny, "hello", "--raw", "-n", 4, stdout=subprocess.PIPE)
    assert done.returncode == 0 and done.stdout


def test_standard_output_is_a_file(tiny, tmp_path):
    """The text alone, without a newline that the model did not write; notices go to standard error."""
    words = ("run", tiny, "hello", "--raw", "-n", 4, "--temp", 0)
    with open(tmp_path / "out", "wb") as out:
        assert in_shell('exec "$0" "$@"', *words, stdout=out).returncode == 0
    assert (tmp_path / "out").read_bytes().decode() == weir_json(*words)["text"]


def test_file_size_limit(tiny, tmp_path):
    """A limit on files is an error, not the signal, and leaves no file."""
    (tmp_path / "ids").write_text(json.dumps([5] * 400))
    words = ("eval", tiny, "--ids", tmp_path / "ids", "--logits", tmp_path / "out.npy")
    done = in_shell('ulimit -f 100; exec "$0" "$@"', *words, capture_output=True)
    assert done.returncode == 5 and b"File too large" in done.stderr, done
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ids"]
