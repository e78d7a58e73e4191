# SPDX-License-Identifier: Apache-2.0
"""Known failures of other engines that a command can repeat, by their ids: E2 to E10, F2, H2 to H6, J7. A prompt is never cut, a path is only a path."""
import itertools
import json
import os
import re
import resource
import shutil
import subprocess
import time

import numpy as np
import pytest
import tiny_model
from command import WEIR, environment, weir, weir_json, weir_measured

GREEDY = ("--raw", "-c", 128, "-n", 8, "--temp", 0)


def error_of(*arguments, **how):
    done = weir(arguments[0], "--json", *arguments[1:], **how)
    assert done.code > 0, done.show()
    return done.json["error"]


def prompt_of(n):
    """n tokens of the tiny model: bytes that no merge joins."""
    return "xyzq" * (n // 4) + "xyzq"[: n % 4]


# ---- E: the context, seeds, biases -----------------------------------------------------------


@pytest.mark.parametrize("n", (255, 256, 257, 10_000))
@pytest.mark.parametrize("command", ("run", "eval"))
def test_e2_prompt_against_context(tiny, tmp_path, command, n):
    """What fits runs; what does not is an error with both numbers, one of which works, and nothing is cut."""
    text = tmp_path / "prompt"
    text.write_text(prompt_of(n))
    flags = ("-f", text, *(("--raw", "-n", 4) if command == "run" else ()))
    if n <= 256:
        assert weir_json(command, tiny, *flags, "-c", 256)["n_prompt"] == n
        return
    error = error_of(command, tiny, *flags, "-c", 256)
    assert error["code"] == "WEIR_E_CONTEXT" and error["exit"] == 1, error
    assert str(n) in error["message"] and "256" in error["message"], error
    works = re.search(r"-c (\d+)", error["message"])[1]
    assert weir_json(command, tiny, *flags, "-c", works)["n_prompt"] == n


def test_e2_chat(tmp_path):
    """A conversation that grows beyond the context is an error, not a shorter conversation."""
    model = tiny_model.write(tmp_path / "m.gguf", "Q8_0", template="{% for m in messages %}{{ m.content }}{% endfor %}", context=4096)
    lines = "\n".join(prompt_of(100) for _ in range(4)).encode()
    done = weir("chat", model, "--stdin", "-c", 256, "-n", 1, "--temp", 0, "-q", stdin=lines)
    assert done.code == 1 and len(done.out.splitlines()) == 2, done.show()
    assert re.search(r"error: the conversation is too long: the text has 30\d tokens and the context 256 positions; start with a larger -c", done.err), done.show()


@pytest.mark.parametrize("kv", ("f16", "f32", "q8_0", "k8v4"))
@pytest.mark.parametrize("prompt", (1, 31, 127, 128))
def test_e3_end_of_context(tiny, kv, prompt):
    """10,000 tokens of a context of 128: `length` exactly at its end, and until there what a longer context gives."""
    flags = ("--raw", "--temp", 0, "--ignore-eos", "--kv", kv, "-n", 10_000)
    done = weir_json("run", tiny, prompt_of(prompt), *flags, "-c", 128)
    assert done["finish"] == "length" and done["n_prompt"] == prompt
    assert done["n_prompt"] + done["n_generated"] == 129  # the last token drawn need not be evaluated
    longer = weir_json("run", tiny, prompt_of(prompt), *flags[:-1], 130, "-c", 512)
    assert done["ids"] == longer["ids"][: done["n_generated"]]


def test_e5_quantized_keys_and_values(tiny):
    """Each type is planned and run as that, never another one instead: 34 bytes for 32 keys or values of q8_0, 18 for values of k8v4. The default keeps f16."""
    f16 = weir_json("plan", tiny, "-c", 64, "--kv", "f16")["kv"]
    for kv, bytes_of_64 in (("q8_0", 34 + 34), ("k8v4", 34 + 18)):
        plan = weir_json("plan", tiny, "-c", 64, "--kv", kv)["kv"]
        assert plan["type"] == kv and plan["bytes_per_position"] * 128 == f16["bytes_per_position"] * bytes_of_64
        assert weir_json("run", tiny, "x", "--raw", "-n", 2, "-c", 64, "--kv", kv)["kv"] == plan
    error = error_of("run", tiny, "x", "--kv", "q4_0")
    assert error["exit"] == 2 and "q4_0" in error["message"] and all(kv in error["message"] for kv in ("f16", "f32", "q8_0", "k8v4")), error
    assert weir_json("plan", tiny)["kv"]["type"] == "f16"


def test_e5_heads_that_are_no_blocks(tmp_path, monkeypatch):
    """Types with blocks of 32 are refused for heads of 16 dimensions: another type instead would be another answer."""
    monkeypatch.setattr(tiny_model, "HEAD_DIM", 16)
    tiny_model.encoded.cache_clear()
    model = tiny_model.write(tmp_path / "m.gguf")
    tiny_model.encoded.cache_clear()
    for command, kv in itertools.product((("run", model, "x"), ("plan", model)), ("q8_0", "k8v4")):
        error = error_of(*command, "--kv", kv)
        assert error["exit"] == 2 and kv in error["message"] and "16" in error["message"] and "f16" in error["message"], error


@pytest.mark.parametrize("flags", (("--temp", 0), ("--temp", 0.8, "--seed", 7)))
def test_e6_run_and_chat_agree(smollm2, flags):
    """The same message with the same settings gives the same text in both."""
    common = (smollm2, "-c", 256, "-n", 12, "--memory", "1G", *flags)
    run = weir_json("run", *common, "What is the sea?")
    chat = weir("chat", *common, "--stdin", "--json", "-q", stdin=b"What is the sea?\n", expect=0).json
    assert chat == {"text": run["text"], "finish": run["finish"]} and len(run["ids"]) == 12


def test_e7_same_seed_ten_times(tiny):
    """Ten runs with one seed give ten times the same ids, also while three others run beside them."""
    words = ("run", tiny, "hello", "--raw", "-c", 256, "-n", 60, "--seed", 42, "--temp", 1, "--ignore-eos")
    expected = weir_json(*words)["ids"]
    assert all(weir_json(*words)["ids"] == expected for _ in range(4))
    other = [str(WEIR), "run", str(tiny), "other", "--raw", "-c", "4096", "--seed", "1", "--ignore-eos", "--memory", "64M"]
    others = [subprocess.Popen(other, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()) for _ in range(3)]
    try:
        assert all(weir_json(*words)["ids"] == expected for _ in range(5))
    finally:
        for process in others:
            process.kill()
            process.wait()


def test_e10_logit_bias(tiny):
    """A forbidden token never comes, a forced one always, whatever the other samplers are; an id outside the vocabulary is refused."""
    sure = weir_json("run", tiny, "hello", *GREEDY)["ids"][0]
    samplers = ((), ("--temp", 0), ("--temp", 1, "--top-k", 0, "--top-p", 1, "--min-p", 0), ("--top-k", 1), ("--repeat-penalty", 1.5), ("--top-p", 0.1))
    for flags in samplers:
        done = weir_json("run", tiny, "hello", "--raw", "-c", 128, "-n", 40, *flags, "--ignore-eos", "--logit-bias", f"{sure}=-100")
        assert sure not in done["ids"], flags
        done = weir_json("run", tiny, "hello", *GREEDY[:-2], *flags, "--logit-bias", "77=100")
        assert done["ids"] == [77] * 8, flags
    both = weir_json("run", tiny, "hello", *GREEDY, "--logit-bias", "77=100", "--logit-bias", "78=200")
    assert both["ids"] == [78] * 8
    for bad in ("2000=1", "2147483647=1", "99999999999=1", "-1=1", "5", "5=", "=5", "x=1", "5=x", "5=inf", "5=nan", "5=1e10", "5 = 1"):
        error = error_of("run", tiny, "hello", *GREEDY, "--logit-bias", bad)
        assert error["exit"] == 2 and "logit-bias" in error["message"], (bad, error)
    assert "2000" in error_of("run", tiny, "hello", *GREEDY, "--logit-bias", "2000=1")["message"]


# ---- F2: a full disk --------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "weir-test", str(place)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no small file system can be mounted: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("what", ("synth", "eval"))
@pytest.mark.parametrize("before", (None, b"an older file"))
def test_f2_full_disk(tiny, tmp_path, small_disk, what, before):
    """An error that names file and need; no part is left, an older file stays; with room it works."""
    out = small_disk / "out"
    if before:
        out.write_bytes(before)
    ids = tmp_path / "ids"
    ids.write_text(json.dumps([5] * 300))  # 300 x 2000 logits: 2.4 MB
    words = ("synth", "tiny-256", "-o", out) if what == "synth" else ("eval", tiny, "--ids", ids, "--logits", out)
    error = error_of(*words)
    assert error["code"] == "WEIR_E_WRITE" and error["exit"] == 5 and str(out) in error["message"], error
    need = int(re.search(r"(\d+) bytes are needed", error["message"])[1])
    assert [path.name for path in small_disk.iterdir()] == (["out"] if before else [])
    assert not before or out.read_bytes() == before
    subprocess.run(["mount", "-o", f"remount,size={need + (1 << 20)}", str(small_disk)], check=True)
    weir(*words, expect=0)
    assert out.stat().st_size == need


def test_f2_file_size_limit(tiny, tmp_path):
    """A limit of the process is an error as well, not the signal SIGXFSZ."""
    ids = tmp_path / "ids"
    ids.write_text(json.dumps([5] * 300))
    for words in (("synth", "tiny-256", "-o", tmp_path / "out"), ("eval", tiny, "--ids", ids, "--logits", tmp_path / "out")):
        how = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)), "capture_output": True}
        done = subprocess.run([str(WEIR), *map(str, words)], env=environment(), check=False, timeout=60, **how)
        assert done.returncode == 5 and b"File too large" in done.stderr and str(tmp_path / "out").encode() in done.stderr, done
        assert [path.name for path in tmp_path.iterdir()] == ["ids"]


# ---- H: threads, GPUs, streams, paths --------------------------------------------------------


def test_h2_more_threads_than_processors(smollm2, say):
    """64 threads give the same text and take at most 1.5 times the processor time of 2."""
    prompt = "The quick brown fox jumps over the lazy dog. " * 20

    def run(threads):
        done = weir_measured("run", smollm2, prompt, "--raw", "-c", 512, "-n", 16, "--temp", 0, "--memory", "1G", "-t", threads, "--json", expect=0)
        return done.usage["cpu"], done.json["ids"]

    cpu, ids = {2: [], 64: []}, {}
    for _ in range(3):
        for threads in cpu:
            taken, ids[threads] = run(threads)
            cpu[threads].append(taken)
    say(f"measured: H2: 64 threads {min(cpu[64]):.2f} s of processor time, 2 threads {min(cpu[2]):.2f} s, ratio {min(cpu[64]) / min(cpu[2]):.2f}")
    assert ids[64] == ids[2] and min(cpu[64]) <= 1.5 * min(cpu[2])


@pytest.mark.parametrize("value", ("-1", "100000", "257", "two", "", "1.5", "0x2", " 2", "99999999999999999999"))
def test_h2_odd_numbers_of_threads(tiny, value):
    error = error_of("run", tiny, "x", f"--threads={value}")
    assert error["exit"] == 2 and "--threads" in error["message"] and "256" in error["message"], error


def test_h2_no_spin_when_idle(tmp_path):
    """A conversation that waits for its next message takes no processor time, with all its threads."""
    model = tiny_model.write(tmp_path / "m.gguf", "Q8_0", template="{{ messages[0].content }}")
    words = [str(WEIR), "chat", str(model), "--stdin", "-n", "1", "-t", "8", "-q"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as chat:
        chat.stdin.write(b"hello\n")
        chat.stdin.flush()
        chat.stdout.readline()

        def ticks():
            with open(f"/proc/{chat.pid}/stat", encoding="ascii") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
            return int(fields[11]) + int(fields[12])

        time.sleep(0.5)
        before = ticks()
        time.sleep(4)
        assert ticks() - before <= 4 * os.sysconf("SC_CLK_TCK") // 100, "more than one per cent"
        chat.stdin.close()
        assert chat.wait(120) == 0


@pytest.mark.parametrize("words", (("--n-gpu-layers", 5), ("-ngl", 5), ("--gpu-layers=5",)))
def test_h3_no_gpu(tiny, words):
    """Nothing about GPUs unless asked for; a request is one clear error."""
    error = error_of("run", tiny, "x", *words)
    assert error["exit"] == 2 and "CPU" in error["message"], error
    done = weir("run", tiny, "x", *GREEDY, "-v", expect=0)
    assert not re.search("gpu|cuda|metal|vulkan", done.err, re.I), done.err


@pytest.mark.parametrize("script", ('exec "$0" "$@" -p hello </dev/null', 'exec "$0" "$@" -p hello <&-', 'printf hello | "$0" "$@"', 'exec "$0" "$@" -f "$P"'))
def test_h5_ends_by_itself(tiny, tmp_path, script):
    """No input is waited for where the prompt is given; a piped one is used once."""
    (tmp_path / "prompt").write_text("hello")
    how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 120, "check": False}
    done = subprocess.run(["sh", "-c", script, str(WEIR), "run", str(tiny), *map(str, GREEDY), "--json"], env=environment(P=tmp_path / "prompt"), **how)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ids"] == weir_json("run", tiny, "hello", *GREEDY)["ids"]


def test_h5_closed_streams(tiny):
    """Closed standard input without a prompt is an error; `head -c 5` is a quiet end, with a limit or without."""
    def shell(script, *words):
        return subprocess.run(["bash", "-c", script, str(WEIR), *map(str, words)], capture_output=True, env=environment(), timeout=60, check=False)

    done = shell('exec "$0" "$@" <&-', "run", tiny, *GREEDY)
    assert done.returncode in (2, 5) and b"weir: error: " in done.stderr, done
    for words in (GREEDY, ("--raw", "-c", 100_000, "--ignore-eos", "--memory", "1G")):
        done = shell('set -o pipefail; "$0" "$@" -p hello -q | head -c 5', "run", tiny, *words)
        assert done.returncode == 0 and len(done.stdout) == 5 and done.stderr == b"", done


FOLDER = "mödel 模型 'q\" $x"


def test_h6_odd_paths_everywhere(tiny, tmp_path):
    """Model, prompt file, logits, tape, synth and the cache folder under a name with everything in it."""
    folder = tmp_path / FOLDER
    cache = folder / "weir" / "models"
    cache.mkdir(parents=True)
    model = folder / "model 模型.gguf"
    weir("synth", "tiny", "--type", "q4_0", "--vocab", 2000, "-o", model, expect=0)
    assert model.read_bytes() == tiny.read_bytes()
    prompt = folder / "prompt é'.txt"
    prompt.write_text("hello")
    expected = weir_json("run", tiny, "hello", *GREEDY)["ids"]
    done = weir_json("run", model, "-f", prompt, *GREEDY)
    assert done["ids"] == expected and done["model"] == str(model)
    logits, tape = folder / "logits \".npy", folder / "tape $x"
    weir("eval", model, "-f", prompt, "--logits", logits, expect=0)
    assert np.load(logits).shape[1] == 2000
    weir("plan", model, "--tape", tape, "--memory", weir_json("plan", model)["min_budget"], expect=0)
    assert tape.exists()
    shutil.copy(model, cache / "näme 名.gguf")
    env = {"XDG_CACHE_HOME": folder}
    assert weir_json("list", env=env)["models"][0]["name"] == "näme 名"
    done = weir_json("run", "näme 名", "-f", prompt, *GREEDY, env=env)
    assert done["ids"] == expected and done["model"] == str(cache / "näme 名.gguf")
    assert "prompt é" in error_of("run", model, "-f", f"{prompt}x", *GREEDY)["message"]


@pytest.mark.parametrize("name", (b"n" * 250, b"\xff\xfe\x80", "名".encode() * 83, b"\xc3", b"a\x01\x1b[2Jb"), ids=("long", "bytes", "wide", "half", "control"))
def test_h6_odd_names(tiny, tmp_path, name):
    """The longest name, bytes that are no UTF-8, control characters: they work, JSON stays JSON, and a message is one clean line."""
    base = os.fsencode(tmp_path)
    model, prompt, logits, out = (base + b"/" + name[: 255 - len(end)] + end for end in (b".gguf", b".txt", b".npy", b".out"))
    os.link(tiny, model)
    with open(prompt, "wb") as file:
        file.write(b"hello")
    done = weir("run", model, "-f", prompt, *GREEDY, "--json", expect=0)
    assert json.loads(done.out.decode())["ids"] == weir_json("run", tiny, "hello", *GREEDY)["ids"]
    weir("eval", model, "-f", prompt, "--logits", logits, expect=0)
    assert np.load(os.fsdecode(logits)).shape[1] == 2000
    wrote = weir("synth", "tiny", "--vocab", 2000, "-o", out, expect=0)
    assert "\x1b" not in wrote.err and "\x01" not in wrote.err
    for missing in (("run", model + b"x"), ("run", model, "-f", prompt + b"x"), ("run", prompt, "x"), ("eval", model, "-f", prompt, "--logits", base + b"/no/" + name)):
        done = weir(missing[0], "--json", *missing[1:])
        assert done.code in (1, 5), done.show()
        message = json.loads(done.out.decode())["error"]["message"]
        assert message.isprintable() and f"weir: error: {message}\n" in done.err and len(message) > 20, done.show()


# ---- J7: a refusal names the knob and a value that works ---------------------------------------


def test_j7_budget(tiny):
    """All numbers that it names work."""
    error = error_of("run", tiny, "x", *GREEDY[:1], "-n", 1, "-c", 100_000, "--memory", "20M")
    assert error["exit"] == 3, error
    short, memory, context = re.search(r"--memory (\d+)M \((\d+) bytes\) or -c (\d+)", error["message"]).groups()
    for text, budget in ((memory, int(memory)), (f"{short}M", int(short) << 20)):
        assert weir_json("run", tiny, "x", "--raw", "-n", 1, "-c", 100_000, "--memory", text)["memory"]["budget"] == budget
    assert weir_json("run", tiny, "x", "--raw", "-n", 1, "-c", context, "--memory", "20M")["kv"]["context"] == int(context)
    assert error_of("run", tiny, "x", "-c", int(context) + 16, "--memory", "20M")["exit"] == 3


@pytest.mark.parametrize("words, text", [
    (["--memory", "2 G"], "2G"),
    (["--memory", "1.5"], "1.5G"),
    (["--memory", "2GG"], "GiB"),
    (["--memory", "-2G"], "512M"),
    (["-c", "1e9"], "2147483648"),
    (["--top-k", "-1"], "2147483647"),
    (["--repeat-last", "5000"], "4096"),
    (["--seed", "18446744073709551616"], "18446744073709551615"),
    (["--kv", "q4"], "f16"),
    (["--temperature", "1"], "--temp"),
    (["--max-tokens", "5"], "-n"),
    (["--ctx-size", "5"], "--ctx"),
    (["--extent", "2G"], "1073741824"),
    (["--raw", "--system", "x"], "give one of them"),
    (["-q", "-v"], "give one of them"),
    (["--policy", "x"], "not in this version"),
])
def test_j7_usage(tiny, words, text):
    error = error_of("run", tiny, "x", *words)
    assert error["exit"] == 2 and text in error["message"], error


@pytest.mark.parametrize("command", ("serve", "pack", "trace", "sim"))
def test_j7_commands_that_are_to_come(command):
    if command in weir("help", expect=0).out.decode().replace(",", "").split():
        pytest.skip("it is there by now")
    done = weir(command, "x")
    assert done.code == 2 and "planned" in done.err, done.show()


def test_j7_rounding_is_said(smollm2):
    """What the plan makes of a diagnostic size is one line and a warning in JSON."""
    plan = weir_json("plan", smollm2, "--memory", "64M", "--extent", 4095)
    assert plan["io"]["extent"] == 4096 and any("4095" in line and "4096" in line for line in plan["warnings"]), plan["warnings"]
    plan = weir_json("plan", smollm2, "--memory", "64M", "--ring", 1)
    assert any(str(plan["io"]["ring"]) in line for line in plan["warnings"]), plan["warnings"]
    assert weir_json("plan", smollm2, "--memory", "64M", "--extent", 8192, "--ring", 1 << 20)["warnings"] == []
