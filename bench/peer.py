# SPDX-License-Identifier: Apache-2.0
"""Shared by the programs of bench/: models by name, the weir command, memory cgroups, and llama.cpp."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from record import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent
WEIR = ROOT / "build" / "weir"
LLAMA = "llama-cpp-python==0.3.36"
REAL = ("smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m")


class Failed(Exception):
    """A run of weir or llama.cpp did not end well."""


def model_file(name):
    """A file; a model that tools/fetch-models knows; or a shape of weir synth, as Q4_0."""
    if pathlib.Path(name).is_file():
        return pathlib.Path(name)
    if name in REAL:
        done = subprocess.run([ROOT / "tools" / "fetch-models", name], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"{name} could not be fetched")
        return pathlib.Path(done.stdout.strip())
    path = ROOT / "build" / f"synth-{name.replace('/', '-')}-q4_0.gguf"
    if not path.exists() and subprocess.run([WEIR, "synth", name, "--type", "q4_0", "-o", path], check=False).returncode != 0:
        raise Failed(f"there is no model {name}")
    return path


class Cgroup:
    """A memory limit for one child: cgroup v1 or v2, whichever the machine has."""

    def __init__(self, limit):
        v1 = pathlib.Path("/sys/fs/cgroup/memory")
        self.path = (v1 if v1.is_dir() else pathlib.Path("/sys/fs/cgroup")) / f"weir-bench-{os.getpid()}"
        self.path.mkdir()
        (self.path / ("memory.limit_in_bytes" if v1.is_dir() else "memory.max")).write_text(str(limit))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _ in range(50):
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.1)

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))


def drop_caches():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def with_priority(setting):
    return setting + (f", nice {os.nice(0)}" if os.nice(0) else "")


def short(model):
    """How ids name a model: 8b, smollm2-135m."""
    return model.stem.removeprefix("synth-").removesuffix("-q4_0")


def weir(*arguments, cgroup=None):
    """Runs the command with --json; gives the object."""
    done = subprocess.run([WEIR, *map(str, arguments), "--json"], capture_output=True, text=True, timeout=1800, check=False, preexec_fn=cgroup.enter if cgroup else None)
    if done.returncode != 0:
        raise Failed(f"weir {arguments[0]}: exit {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def llama_python():
    """The Python that has llama.cpp, built from its package's source for this machine when that is not there yet."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    folder = cache / "weir" / "peer" / f"{LLAMA.replace('==', '-')}-{machine()}"
    python, ready, log = folder / "bin" / "python", folder / "ready", folder / "build.log"
    if not ready.exists():
        print(f"building {LLAMA} for this machine, once, in {folder} (ten minutes on two CPUs) ...", file=sys.stderr, flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        build = {**os.environ, "CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DLLAMA_OPENSSL=OFF", "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count()),
                 "CXXFLAGS": f"-include {ROOT / 'bench' / 'peer_amx.h'}"}
        with open(log, "wb") as out:
            for command in ([sys.executable, "-m", "venv", folder], [python, "-m", "pip", "install", "--verbose", "--no-binary", LLAMA.partition("==")[0], LLAMA]):
                if subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=build, check=False).returncode != 0:
                    raise Failed(f"llama.cpp could not be built, {log} says why (it needs g++ and python3-venv)")
        ready.touch()
    return python


class Llama:
    """llama.cpp with one model loaded, in a process of its own. mapped: out of core, the file is mapped and nothing is copied."""

    def __init__(self, model, threads, context=1024, mapped=False, cgroup=None):
        how = {"model": str(model), "threads": threads, "context": context, "mapped": mapped, "cgroup": str(cgroup.path) if cgroup else None}
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([llama_python(), ROOT / "bench" / "peer_llama.py", json.dumps(how)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True)

    def __enter__(self):
        self.built_for = " ".join(re.findall(r"(\w+) = 1\b", self.answer()))
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()

    def answer(self):
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.errors.seek(0)
        raise Failed(f"llama.cpp: exit {self.process.wait()}: {''.join(self.errors.readlines()[-1:]).strip()}")

    def complete(self, ids, n, ignore_eos=False):
        """The likeliest n tokens after some: ids (None: an end token), margins, and the rates of prefill and decode in tokens a second."""
        try:
            self.process.stdin.write(json.dumps({"ids": ids, "n": n, "ignore_eos": ignore_eos}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: answer() says so
        answer = self.answer()
        seconds, passes = answer.pop("seconds"), len(answer["ids"]) - 1
        return {**answer, "prefill": len(ids) / seconds["prefill"], "decode": passes / seconds["decode"] if passes else None}
