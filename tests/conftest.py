# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the command: models, and lines for the summary that tests/run repeats.

WEIR names the command (default: build/weir). Marker `slow`: more than 30 s on two slow cores.
"""
import json
import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parent
for folder in ("e2e", "budget", "oracle"):
    sys.path.insert(0, str(TESTS / folder))

import command  # noqa: E402

LINES = []


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes more than 30 s on two slow cores")


def pytest_sessionstart(session):
    if not command.WEIR.exists():
        raise pytest.UsageError(f"{command.WEIR} is not there: build it, or name the command in WEIR")


def pytest_terminal_summary(terminalreporter):
    for line in LINES:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def say():
    """say("measured: ...") puts a line into the summary, whatever pytest captures."""
    return LINES.append


@pytest.fixture(scope="session")
def smollm2():
    """The real model, fetched once into the user's cache folder."""
    done = subprocess.run([sys.executable, str(TESTS.parent / "tools" / "fetch-models"), "smollm2-135m"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"the model is not to be had: {done.stderr.strip()}")
    return pathlib.Path(done.stdout.split("\n")[0])


@pytest.fixture(scope="session")
def scratch(tmp_path_factory):
    """A folder for files of some MB."""
    return tmp_path_factory.mktemp("weir")


@pytest.fixture(scope="session")
def tiny(scratch):
    """A synthetic model that computes a token in well under a millisecond: Q4_0, 2 layers, 2000 words."""
    path = scratch / "tiny.gguf"
    command.weir("synth", "tiny", "--type", "q4_0", "--vocab", "2000", "-o", path, expect=0)
    return path


@pytest.fixture(scope="session")
def levels(say):
    """The CPU levels of this machine, lowest first."""
    known = json.loads(command.weir("version", "--json", expect=0).out)["levels"]
    here = [level["name"] for level in known if level["available"]]
    missing = [level["name"] for level in known if not level["available"]]
    say(f"levels: ran {', '.join(here)}" + (f"; not on this machine: {', '.join(missing)}" if missing else ""))
    return here
