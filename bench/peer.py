# SPDX-License-Identifier: Apache-2.0
"""Shared by compare and greedy: models by name, the weir command, and llama.cpp (package xllamacpp, installed below build/)."""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WEIR = ROOT / "build" / "weir"
VENV = ROOT / "build" / "venv-llama"
REAL = ("smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m")

# Answers one request a line until its input ends. The first line says what llama.cpp was built for.
LLAMA = """
import json, sys, xllamacpp as x
how = json.loads(sys.argv[1])
p = x.CommonParams()
p.model.path, p.n_ctx, p.n_parallel, p.verbosity = how['model'], how['context'], 1, 0
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = how['threads']
if how['mapped']:
    # Repacked weights are a second copy in memory, which a limit below the file's size kills: the mapped file alone it is.
    p.warmup, p.no_extra_bufts, p.fit_params, p.load_mode = False, True, False, x.llama_load_mode.LLAMA_LOAD_MODE_MMAP
server = x.Server(p)
answers = sys.stdout
print(json.dumps(x.get_system_info()), file=answers, flush=True)
for line in sys.stdin:
    answer = server.handle_completions(json.loads(line))
    answer = json.loads(answer) if isinstance(answer, str) else answer
    print(json.dumps(answer[0] if isinstance(answer, list) else answer), file=answers, flush=True)
"""


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


def weir(*arguments, cgroup=None):
    """Runs the command with --json; gives the object."""
    done = subprocess.run([WEIR, *map(str, arguments), "--json"], capture_output=True, text=True, timeout=1800, check=False, preexec_fn=cgroup.enter if cgroup else None)
    if done.returncode != 0:
        raise Failed(f"weir {arguments[0]}: exit {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


class Llama:
    """llama.cpp with one model loaded, in a process of its own. mapped: out of core, the file is mapped and nothing is copied."""

    def __init__(self, model, threads, context=1024, mapped=False, cgroup=None):
        if not (VENV / "bin" / "python").exists():
            subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
            subprocess.run([VENV / "bin" / "pip", "install", "--quiet", "xllamacpp"], check=True)
        how = {"model": str(model), "threads": threads, "context": context, "mapped": mapped}
        self.process = subprocess.Popen([VENV / "bin" / "python", "-c", LLAMA, json.dumps(how)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True, preexec_fn=cgroup.enter if cgroup else None)

    def __enter__(self):
        self.built_for = " ".join(part.split()[-3] for part in self.answer().split("|") if part.strip().endswith("= 1"))
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()

    def answer(self):
        for line in self.process.stdout:
            if line.startswith(("{", '"')):
                return json.loads(line)
        raise Failed(f"llama.cpp: exit {self.process.wait()}")

    def complete(self, prompt, n, **more):
        """The likeliest n tokens after a prompt (a text, or ids)."""
        request = {"prompt": prompt, "n_predict": n, "temperature": 0, "cache_prompt": False, **more}
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: answer() says so
        answer = self.answer()
        if "error" in answer:
            raise Failed(f"llama.cpp: {answer['error']}")
        return answer
