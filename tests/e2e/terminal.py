# SPDX-License-Identifier: Apache-2.0
"""Runs the weir command in a pseudo-terminal, as a person would."""
import os
import pty
import re
import select
import signal
import termios
import time

import pytest
from command import WEIR, environment

PATIENCE = 120  # seconds for anything to appear


class Terminal:
    """A command with a terminal of its own. expect(pattern) waits until it appears behind what was expected before.

    cgroup: a folder to join. out: a file for standard output.
    """

    def __init__(self, home, *arguments, cgroup=None, out=None):
        words = [str(WEIR), *map(str, arguments)]
        kept = {name: value for name, value in environment(HOME=home, TERM="xterm", LC_ALL="C.UTF-8").items() if not name.startswith("XDG_")}
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            if cgroup:
                (cgroup / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
            if out:
                os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
            os.execve(words[0], words, kept)
        self.shown, self.seen, self.code, self.began = b"", 0, None, time.monotonic()

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

    def start(*arguments, **how):
        opened.append(Terminal(tmp_path, *arguments, **how))
        return opened[-1]

    yield start
    for one in opened:
        one.close()
