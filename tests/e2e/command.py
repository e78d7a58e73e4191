# SPDX-License-Identifier: Apache-2.0
"""Runs the weir command as a user would, and says what it did."""
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEIR = pathlib.Path(os.environ.get("WEIR") or ROOT / "build" / "weir")
GOLDEN = ROOT / "tests" / "golden"
# Fixtures of the real models: the small one in every run, the others with the marker `full`.
REAL = ["smollm2", pytest.param("qwen", marks=pytest.mark.full), pytest.param("gemma", marks=pytest.mark.full)]


@dataclasses.dataclass
class Result:
    command: list
    code: int
    out: bytes
    err: str
    usage: dict = None

    @property
    def json(self):
        return json.loads(self.out)

    def show(self):
        return f"{' '.join(map(str, self.command))}\nexit {self.code}\nstdout {self.out[:2000]!r}\nstderr {self.err[:2000]}"


def environment(**more):
    """The caller's environment without its WEIR_ variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WEIR")}
    return {**kept, **{name: str(value) for name, value in more.items()}}


def weir(*arguments, expect=None, before=(), stdin=b"", env=None, cwd=None, timeout=600):
    """Runs the command; `expect` is the exit code that it must have, `before` words in front of it."""
    words = [*before, str(WEIR), *[a if isinstance(a, bytes) else str(a) for a in arguments]]
    done = subprocess.run(words, input=stdin, capture_output=True, env=environment(**(env or {})), cwd=cwd, timeout=timeout, check=False)
    result = Result(words, done.returncode, done.stdout, done.stderr.decode(errors="replace"))
    assert expect is None or result.code == expect, result.show()
    return result


def weir_json(*arguments, **how):
    """Runs the command with --json, expecting success; gives the object."""
    return weir(*arguments, "--json", **{"expect": 0, **how}).json


def warnings_of(result):
    """Of a --json object, without the one about more threads than CPUs: tests that need two threads are run on one CPU too."""
    return [line for line in result["warnings"] if "more threads than that are no faster" not in line]


def weir_measured(*arguments, expect=None, before=(), stdin=None, cgroup=None, stack=None, address_space=None, env=None, cwd=None, timeout=600):
    """Like weir, but started from a small process, so that what the system says of it is of the command alone.

    usage: max_rss, {read,write}_bytes (of devices), {read,write}_chars (of calls), cpu (seconds). `cgroup` is a folder to join, `stack` and
    `address_space` are limits; `before` are words in front of the command, of a program that ends by executing it; `stdin` a file to read from.
    """
    words = [*map(str, before), str(WEIR), *map(str, arguments)]
    report_from, report_to = os.pipe()
    with os.fdopen(os.memfd_create("out"), "w+b") as out, os.fdopen(os.memfd_create("err"), "w+b") as err, os.fdopen(report_from) as report:
        how = {"command": words, "report": report_to, "cgroup": str(cgroup) if cgroup else None, "stack": stack, "address_space": address_space}
        launcher = [sys.executable, "-I", "-S", str(pathlib.Path(__file__).with_name("launch.py")), json.dumps(how)]
        streams = {"stdin": stdin or subprocess.DEVNULL, "stdout": out, "stderr": err}
        process = subprocess.Popen(launcher, **streams, cwd=cwd, env=environment(**(env or {})), pass_fds=[report_to], start_new_session=True)
        os.close(report_to)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            raise
        usage = json.loads(report.read() or "null")
        out.seek(0)
        err.seek(0)
        result = Result(words, usage["code"] if usage else process.returncode, out.read(), err.read().decode(errors="replace"), usage)
    assert usage is not None, result.show()
    assert expect is None or result.code == expect, f"{result.show()}\n{usage}"
    return result


def instructions(function, *arguments):
    """Runs the command under callgrind; gives the instructions of each outermost call of the function, in their order: work, whatever else the machine does."""
    with tempfile.TemporaryDirectory() as folder:
        tool = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", f"--toggle-collect={function}", f"--dump-after={function}")
        done = weir(*arguments, before=tool, env={"WEIR_CPU": "avx2"}, expect=0)  # valgrind knows no AVX-512
        counts, calls = [], sorted(pathlib.Path(folder).glob("out.*"), key=lambda path: int(path.suffix[1:]))
        for path in calls:
            counts.append(int(re.search(r"^totals: (\d+)$", path.read_text(encoding="ascii", errors="replace"), re.M)[1]))
    assert counts and min(counts) > 0, done.show()
    return counts
