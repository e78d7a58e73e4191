# SPDX-License-Identifier: Apache-2.0
"""The line of progress: on a terminal, in a log, and never in the answer. B5: a slow disk, and still a word within two seconds."""
import re
import subprocess
import time

import needle_model
import pytest
from cgroup import slow_disk_cgroup
from command import WEIR, environment, weir, weir_json
from terminal import terminal  # noqa: F401 (a fixture)

SLOW = 12_000_000  # bytes/s
STREAMED = ("--raw", "-n", 2, "--temp", 0, "-c", 256, "--memory", "70M")  # half of the model is read in every pass
PROMPT = "The capital of France is"
LONG = "The quick brown fox jumps over the lazy dog. " * 6 + PROMPT  # takes longer than the 0.3 s before a line is shown, on any machine at scalar
BEHIND = rb"\x1b7\x1b\[\?7l  \[([^]]*)\]\x1b\[K\x1b\[\?7h\x1b8"  # behind the text, the cursor stays


@pytest.fixture
def slow_disk(smollm2):
    with slow_disk_cgroup(smollm2, SLOW) as (group, why):
        if group is None:
            pytest.skip(f"no cgroup that reads slowly: {why}")
        yield group


def test_b5_terminal(terminal, smollm2, slow_disk):  # noqa: F811
    """Within 2 s of every beginning (on an idle machine): the phase, how much of it is done, and MB/s."""
    expected = weir_json("run", smollm2, PROMPT, *STREAMED)["text"]
    run = terminal("run", smollm2, PROMPT, *STREAMED, cgroup=slow_disk)
    run.expect(rb"\r(open|load)[^\x1b]*\x1b\[K")
    assert time.monotonic() - run.began < 5  # loading alone takes longer
    run.expect(rb"\rload ([0-9.]+ [KM]iB) of ([0-9.]+ MiB), \d+ MB/s[^\x1b]*\x1b\[K")
    run.expect(rb"\rprefill \d+ of \d+ tokens[^\x1b]*, reading \d+ MB/s\x1b\[K")
    run.expect(BEHIND.replace(rb"[^]]*", rb"decode token 2, \d+ of 30 layers, reading \d+ MB/s"))
    assert run.end() == 0
    text = re.sub(rb"\r[^\r\x1b]*\x1b\[K", b"", re.sub(BEHIND, b"", run.shown))
    assert text.replace(b"\x1b[K", b"").decode().endswith(expected.replace("\n", "\r\n") + "\r\n"), run.shown[-600:]


def test_b5_not_a_terminal(smollm2, slow_disk):
    """Nothing without -v; with it a line at once and then every ten seconds at most; standard output holds the text alone."""
    expected = weir_json("run", smollm2, PROMPT, *STREAMED)["text"]
    words = [str(WEIR), "run", str(smollm2), PROMPT, *map(str, STREAMED)]
    join = f'echo $$ > "{slow_disk}/cgroup.procs"; exec "$@"'
    how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment(TERM="xterm")}
    began = time.monotonic()
    with subprocess.Popen(["sh", "-c", join, "sh", *words, "-v"], **how) as loud:
        lines = []
        for line in loud.stderr:
            if re.match(rb"weir: (open|load|prefill|decode)\b", line):
                lines.append((time.monotonic() - began, line))
        assert loud.stdout.read().decode() == expected and loud.wait() == 0
    assert lines and lines[0][0] < 5, lines
    assert all(b[0] - a[0] > 9.5 for a, b in zip(lines, lines[1:])) and len(lines) >= 2, lines
    with subprocess.Popen(["sh", "-c", join, "sh", *words, "-n", "1"], **how) as plain:
        out, err = plain.communicate(timeout=120)
    assert plain.returncode == 0 and not re.search(rb"MB/s|tokens/s|layers", err) and expected.encode().startswith(out), err


def test_progress_of_computing(terminal, smollm2):  # noqa: F811
    """While a long prompt is computed a line says how far it is; it is taken away before the text comes."""
    run = terminal("run", smollm2, LONG, "--raw", "-n", 2, "--temp", 0, "-c", 128, "--memory", "1G", "--cpu", "scalar", "-t", 1, "--chunk", 8)
    line = rb"\rprefill (\d+) of (\d+) tokens, [0-9.e+-]+ tokens/s[^\x1b]*\x1b\[K"
    first, later = run.expect(line), run.expect(line)
    assert int(first[1]) <= int(later[1]) <= int(later[2]) == int(first[2]) > 20, (first[0], later[0])
    assert run.end() == 0
    assert re.search(rb"prefill[^\x1b]*\x1b\[K\r\x1b\[K[^\r\x1b]", run.shown), run.shown[-500:]


def test_no_progress_when_quiet(terminal, smollm2):  # noqa: F811
    run = terminal("run", smollm2, PROMPT, "--raw", "-n", 1, "-c", 64, "--memory", "1G", "--cpu", "scalar", "-t", 1, "--chunk", 8, "--quiet")
    assert run.end() == 0
    assert b"tokens/s" not in run.shown and b"\x1b" not in run.shown


def test_answer_in_a_file(terminal, smollm2, tmp_path):  # noqa: F811
    """With a terminal for standard error alone, the answer's file holds the answer alone."""
    out = tmp_path / "answer"
    words = ("run", smollm2, LONG, "--raw", "-n", 2, "--temp", 0, "-c", 128, "--memory", "1G", "--cpu", "scalar", "-t", 1)
    run = terminal(*words, out=out)
    run.expect(rb"\rprefill \d+ of \d+ tokens")
    assert run.end() == 0
    assert out.read_bytes() == weir(*words, "-q", expect=0).out


def test_reading_a_long_text(terminal, tmp_path):  # noqa: F811
    """Tokens a second and the time that is left, which grows with what every token attends over; Ctrl-C ends it within a chunk's layer."""
    model = needle_model.write(tmp_path / "needle.gguf", 1 << 17)
    n = 1 << 16
    (tmp_path / "text").write_bytes(needle_model.text_of(needle_model.hide(n, [0])[0]))
    run = terminal("run", model, "--raw", "-f", tmp_path / "text", "-n", 1, "-c", n + 1, "--memory", "1G", "--cpu", "scalar", "-t", 1)
    line = rb"\rprefill (\d+) of 65536 tokens, [0-9.e+]+ tokens/s, \d+ (s|min) left[^\x1b]*\x1b\[K"
    first, later = run.expect(line), run.expect(line)
    assert int(first[1]) <= int(later[1]) < n
    run.type(b"\x03")
    began = time.monotonic()
    assert run.end() == 130 and time.monotonic() - began < 10, run.shown[-500:]
