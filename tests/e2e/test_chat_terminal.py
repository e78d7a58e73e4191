# SPDX-License-Identifier: Apache-2.0
"""A person at a terminal: weir chat and the line of progress, through a pseudo-terminal."""
import os
import pty
import re
import select
import signal
import termios
import time

import pytest
import tiny_model
from command import WEIR, environment

PATIENCE = 120  # seconds for anything to appear
ONE_TURN = "{% if messages|length > 1 %}{{ raise_exception('this model answers once') }}{% endif %}{{ messages[0]['content'] }}"
LETTER_A = 1 + tiny_model.byte_symbols().index("a")


class Terminal:
    """A command with a terminal of its own. expect(pattern) waits until it appears behind what was expected before."""

    def __init__(self, home, *arguments):
        words = [str(WEIR), *map(str, arguments)]
        kept = {name: value for name, value in environment(HOME=home, TERM="xterm", LC_ALL="C.UTF-8").items() if not name.startswith("XDG_")}
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.execve(words[0], words, kept)
        self.shown, self.seen, self.code = b"", 0, None

    def read(self, until):
        """More of what is shown; False at its end."""
        ready, _, _ = select.select([self.file], [], [], max(0, until - time.monotonic()))
        assert ready, f"nothing new within {PATIENCE} s: {self.shown[-3000:]!r}"
        try:
            more = os.read(self.file, 65536)
        except OSError:  # EIO: nobody holds the other side any more
            return False
        self.shown += more
        return bool(more)

    def expect(self, pattern):
        until = time.monotonic() + PATIENCE
        while True:
            found = re.compile(pattern, re.S).search(self.shown, self.seen)
            if found:
                self.seen = found.end()
                return found
            assert self.read(until), f"it ended without {pattern!r}: {self.shown[-3000:]!r}"

    def expect_prompt(self):
        """The prompt, and the terminal in the state where keys come one by one: before, Ctrl-D would be the end of a line for the system."""
        self.expect(rb"> ")
        until = time.monotonic() + PATIENCE
        while termios.tcgetattr(self.file)[3] & termios.ICANON:
            assert time.monotonic() < until, "the line editor does not take over"
            time.sleep(0.001)

    def type(self, text):
        os.write(self.file, text)

    def end(self):
        """Reads to the end; gives the exit code, or minus the signal."""
        until = time.monotonic() + PATIENCE
        while self.read(until):
            pass
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def close(self):
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.file)


@pytest.fixture
def terminal(tmp_path):
    opened = []

    def start(*arguments):
        opened.append(Terminal(tmp_path, *arguments))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_conversation(terminal, tmp_path):
    """The model says "a" without end, and its template refuses a second turn, which shows what /undo forgets."""
    model = tiny_model.write(tmp_path / "chat.gguf", "Q8_0", context=131072, template=ONE_TURN)
    chat = terminal("chat", model, "-c", 100_000, "--memory", "1G", "--ignore-eos", "--logit-bias", f"{LETTER_A}=1000")

    def say(line):
        chat.expect_prompt()
        chat.type(line + b"\r")

    chat.expect(rb"ready; /help")
    say(b"/help")
    chat.expect(rb"/undo .*/bye .*\n")
    say(b"/set temp 0")
    say(b"/set")
    assert chat.expect(rb"temp +([0-9.]+)\r\n.*special *\r\n")[1] == b"0"
    say(b"/set tempp 0")
    chat.expect(rb"weir: error: no setting 'tempp'; did you mean 'temp'\?")
    say(b"/set n 8")
    say(b"hello")
    chat.expect(rb"\n(a{8})\r\n")
    say(b"and now")
    chat.expect(rb"weir: error: .*this model answers once")
    say(b"/stats")
    chat.expect(rb"prefill +\d+ tokens.*\n")
    say(b"/undo")
    say(b"/set n")
    say(b"hello again")
    chat.expect(rb"\na{50}")
    chat.type(b"\x03")
    chat.expect(rb"interrupted\r\n")
    chat.expect_prompt()
    chat.type(b"\x03")
    chat.expect(rb"/bye or Ctrl-D ends")
    say(b"/undo")
    say(b"/set n 3")
    say(b"once more")
    chat.expect(rb"\na{3}\r\n")
    chat.expect_prompt()
    chat.type(b"\x04")
    assert chat.end() == 0, chat.shown[-2000:]


@pytest.mark.parametrize("last", (b"/bye\r", b"\x04"))
def test_end(terminal, tmp_path, last):
    chat = terminal("chat", tiny_model.write(tmp_path / "chat.gguf", "Q8_0", template=ONE_TURN))
    chat.expect_prompt()
    chat.type(last)
    assert chat.end() == 0, chat.shown


def test_progress_on_a_terminal(terminal, smollm2):
    """While a long prompt is read a line says how far it is; it is taken away before the text comes."""
    prompt = "The quick brown fox jumps over the lazy dog. " * 3
    run = terminal("run", smollm2, prompt, "--raw", "-n", 2, "--temp", 0, "-c", 64, "--memory", "1G", "--cpu", "scalar", "-t", 1, "--chunk", 8)
    first = run.expect(rb"\r(\w+) (\d+) of (\d+) tokens, [0-9.e+]+ tokens/s\x1b\[K")
    later = run.expect(rb"\r(\w+) (\d+) of (\d+) tokens, [0-9.e+]+ tokens/s\x1b\[K")
    assert int(first[2]) <= int(later[2]) <= int(later[3]) == int(first[3]) > 20, (first[0], later[0])
    assert run.end() == 0
    assert b"tokens/s\x1b[K\r\x1b[K" in run.shown, run.shown[-500:]


def test_no_progress_when_quiet(terminal, smollm2):
    prompt = "The quick brown fox jumps over the lazy dog."
    run = terminal("run", smollm2, prompt, "--raw", "-n", 1, "-c", 64, "--memory", "1G", "--cpu", "scalar", "-t", 1, "--chunk", 8, "--quiet")
    assert run.end() == 0
    assert b"tokens/s" not in run.shown
