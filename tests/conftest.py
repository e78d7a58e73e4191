# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the command: models, and lines for the summary that tests/run repeats.

WEIR names the command (default: build/weir). Marker `slow`: more than 30 s on two slow cores. Marker `full`: a real model of hundreds of
megabytes; these tests run only where -m names the marker (make check-full).
"""
import json
import os
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
    config.addinivalue_line("markers", "full: large models, long contexts, settings of the whole machine; deselected unless -m names it")


def pytest_collection_modifyitems(config, items):
    if "full" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("full")])
        items[:] = [item for item in items if not item.get_closest_marker("full")]


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


def fetched(name):
    """A real model, fetched once into the user's cache folder."""
    done = subprocess.run([sys.executable, str(TESTS.parent / "tools" / "fetch-models"), name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"the model is not to be had: {done.stderr.strip()}")
    return pathlib.Path(done.stdout.split("\n")[0])


@pytest.fixture(scope="session")
def smollm2():
    return fetched("smollm2-135m")


@pytest.fixture(scope="session")
def qwen():
    """For tests with the marker `full`."""
    return fetched("qwen2.5-coder-0.5b")


@pytest.fixture(scope="session")
def gemma():
    """For tests with the marker `full`."""
    return fetched("gemma3-270m")


@pytest.fixture(scope="session")
def large_here():
    """A large real model for a short test without the marker `full`: where it is fetched already."""
    def path_of(name):
        path = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "weir" / "models" / f"{name}.gguf"
        if not path.is_file():
            pytest.skip(f"{name} is not fetched: tools/fetch-models {name}")
        return path

    return path_of


@pytest.fixture(scope="session", params=command.REAL)
def real(request):
    return request.getfixturevalue(request.param)


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


class Dense:
    """A dense model that fits in no small budget, with the numbers that checks are made of."""

    def __init__(self, path):
        self.path = path
        self.bytes = path.stat().st_size
        self.header = min(tensor["offset"] for tensor in command.weir_json("inspect", path)["tensors"])

    def min_budget(self, *flags):
        return command.weir_json("plan", self.path, *flags)["min_budget"]


@pytest.fixture(scope="session", params=["small", pytest.param("full", marks=pytest.mark.full)])
def dense(request, tmp_path_factory):
    """Q4_0 of the shape of a model of 1.1 B parameters: 5 layers, 120 MiB; in full size 20 layers, 500 MiB. With a chat template."""
    folder = tmp_path_factory.mktemp(f"dense-{request.param}")
    layers, vocab = (5, 2000) if request.param == "small" else (20, 32000)
    command.weir("synth", "1b-gqa", "--layers", layers, "--vocab", vocab, "-o", folder / "plain.gguf", expect=0)
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    tool = [sys.executable, "-c", "from gguf.scripts.gguf_new_metadata import main; main()", "--chat-template", template]
    done = subprocess.run([*tool, str(folder / "plain.gguf"), str(folder / "dense.gguf")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "plain.gguf").unlink()
    yield Dense(folder / "dense.gguf")
    (folder / "dense.gguf").unlink()


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    """environment(SETTING=...) for a command whose calls of the C library fail as tests/tools/shim.c says."""
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library), str(TESTS / "tools" / "shim.c")], check=True)
    return lambda **settings: {"LD_PRELOAD": library, **{f"SHIM_{name}": value for name, value in settings.items()}}


@pytest.fixture(scope="session")
def levels(say):
    """The CPU levels of this machine, lowest first."""
    known = json.loads(command.weir("version", "--json", expect=0).out)["levels"]
    here = [level["name"] for level in known if level["available"]]
    missing = [level["name"] for level in known if not level["available"]]
    say(f"levels: ran {', '.join(here)}" + (f"; not on this machine: {', '.join(missing)}" if missing else ""))
    return here
