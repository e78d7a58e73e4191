# SPDX-License-Identifier: Apache-2.0
"""How the command behaves: exit codes, errors, output, stops, seeds. What is known by an id is in test_known_command.py."""
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tiny_model
from command import ROOT, WEIR, environment, weir, weir_json

RUN = ("--raw", "-c", 128, "-n", 8)
GREEDY = (*RUN, "--temp", 0)


def error_of(*arguments, **how):
    """The error of a failing command: JSON on stdout, the same line on stderr, the same code everywhere, and no second line."""
    done = weir(arguments[0], "--json", *arguments[1:], **how)
    assert done.code > 0 and done.out, done.show()
    error = done.json["error"]
    assert set(error) == {"code", "exit", "message"} and error["exit"] == done.code
    lines = [line for line in done.err.splitlines() if line.startswith("weir: error: ")]
    assert lines == ["weir: error: " + error["message"]], done.show()
    plain = weir(*arguments, **how)
    assert plain.code == done.code and plain.out == b"", plain.show()
    return error


# ---- errors -------------------------------------------------------------------------------


@pytest.mark.parametrize("words, code, text", [
    ([], 2, "no command"),
    (["rnu"], 2, "did you mean 'run'"),
    (["run"], 2, "no model"),
    (["run", "MODEL", "x", "--memroy", "1G"], 2, "did you mean --memory"),
    (["run", "MODEL", "x", "--temperature", "1"], 2, "unknown option --temperature"),
    (["run", "MODEL", "x", "-memory", "1G"], 2, "did you mean --memory"),
    (["run", "MODEL", "x", "--logits", "f"], 2, "'weir eval'"),
    (["run", "MODEL", "x", "y"], 2, "one argument too many"),
    (["run", "MODEL", "--memory", "2", "GB", "x"], 2, "write --memory 2GB"),
    (["plan", "MODEL", "--memory", "2", "GiB"], 2, "write --memory 2GiB"),
    (["eval", "MODEL", "y"], 2, "one argument too many: weir eval"),
    (["run", "MODEL", "x", "--mem", "2G"], 2, "did you mean --memory"),
    (["run", "MODEL", "x", "--context", "3"], 2, "size of the context is -c"),
    (["run", "MODEL", "x", "--memory", "5"], 3, "was 5G meant"),
    (["plan", "MODEL", "--memory", "512"], 3, "was 512M meant"),
    (["run", "MODEL", ""], 2, "the prompt is empty"),
    (["run", "MODEL", "-f", "/dev/null"], 2, "/dev/null is empty"),
    (["eval", "MODEL", "-f", "/dev/null"], 1, "/dev/null is empty"),
    (["eval", "MODEL"], 1, "standard input is empty"),
    (["run", "MODEL", "x", "--memory", "2X"], 2, "--memory"),
    (["run", "MODEL", "x", "--memory", "-1"], 2, "--memory"),
    (["run", "MODEL", "x", "--memory", "0"], 2, "--memory"),
    (["plan", "MODEL", "--memory", "0.2"], 2, "--memory"),
    (["run", "MODEL", "x", "--io", "mmap", "--direct", "on"], 2, "--direct on"),
    (["run", "MODEL", "x", "-c", "-1"], 2, "--ctx"),
    (["run", "MODEL", "x", "-c", "abc"], 2, "--ctx"),
    (["run", "MODEL", "x", "-c", "4294967296"], 2, "--ctx"),
    (["run", "MODEL", "x", "-t", "0x2"], 2, "--threads"),
    (["run", "MODEL", "x", "--kv", "q3"], 2, "f16"),
    (["run", "MODEL", "x", "--io", "magic"], 2, "uring"),
    (["run", "MODEL", "x", "--direct", "maybe"], 2, "auto"),
    (["run", "MODEL", "x", "--temp", "hot"], 2, "--temp"),
    (["run", "MODEL", "x", "--temp", "nan"], 2, "--temp"),
    (["run", "MODEL", "x", "--top-p", "1.5"], 2, "--top-p"),
    (["run", "MODEL", "x", "-n"], 2, "needs a value"),
    (["run", "MODEL", "x", "--seed", "-3"], 2, "--seed"),
    (["run", "MODEL", "x", "--stop", ""], 2, "--stop"),
    (["run", "MODEL", "x", "--logit-bias", "5"], 2, "ID=X"),
    (["run", "MODEL", "x", "--raw=1"], 2, "takes no value"),
    (["run", "MODEL", "-p", "x", "-f", "y"], 2, "given twice"),
    (["run", "no/such/file.gguf", "x"], 5, "no/such/file.gguf"),
    (["run", "/", "x"], None, "/"),
    (["run", "/dev/null", "x"], None, "/dev/null"),
    (["run", "MODEL", "-f", "no/such/text"], 5, "no/such/text"),
    (["run", "MODEL", "-f", "/"], 5, "folder"),
    (["eval", "MODEL", "--ids", "/dev/null"], 1, "ids"),
    (["eval", "MODEL", "--hash", "-f", "/dev/null"], 2, "--logits"),
    (["synth", "9b", "-o", "x"], 2, "shape"),
    (["synth", "tiny"], 2, "-o"),
    (["synth", "tiny", "--type", "q9", "-o", "/dev/null"], 2, "q9"),
    (["detokenize", "MODEL", "99999999"], 1, "99999999"),
    (["detokenize", "MODEL", "abc"], 1, "byte 0"),
    (["tokenize", "MODEL", "--jsonl", "/dev/zero"], 1, "16777216"),
])
def test_errors(tiny, tmp_path, words, code, text):
    words = [tiny if word == "MODEL" else word for word in words]
    if not words:
        done = weir()
        assert done.code == 2 and text in done.err and done.out == b""
        return
    error = error_of(*words, cwd=tmp_path)
    assert code in (error["exit"], None), error
    assert text in error["message"], error
    assert not list(tmp_path.iterdir()), "something was left behind"


def damaged(path, source, how):
    data = source.read_bytes()
    if how == "empty":
        data = b""
    elif how == "not a model":
        data = b"<html>no such page</html>" * 1000
    elif how == "cut in the header":
        data = data[:5000]
    elif how == "cut in the weights":
        data = data[:-5000]
    elif how == "other version":
        data = data[:4] + (99).to_bytes(4, "little") + data[8:]
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("how", ("empty", "not a model", "cut in the header", "cut in the weights", "other version"))
def test_damaged_files(tiny, tmp_path, how):
    path = damaged(tmp_path / "bad model.gguf", tiny, how)
    for command in ("run", "plan", "inspect", "tokenize"):
        if command == "tokenize" and how == "cut in the weights":
            continue
        error = error_of(command, path, *(["x"] if command in ("run", "tokenize") else []), timeout=60)
        assert error["exit"] in (1, 4) and path.name in error["message"], error  # a long path loses its beginning, not what comes after it


@pytest.mark.parametrize("how, word", [({"arch": "mamba"}, "mamba"), ({"model": "nonsense"}, "nonsense")])
def test_unsupported_models(tmp_path, how, word):
    """Well-formed, but not for this program: exit 4, and what it is that is missing."""
    error = error_of("run", tiny_model.write(tmp_path / "m.gguf", **how), "x", *RUN)
    assert error["code"] == "WEIR_E_UNSUPPORTED" and error["exit"] == 4 and word in error["message"], error


def test_check_warns_of_zeros(tiny, tmp_path):
    """A download that took its space first and did not finish: zeros are numbers, and no weights."""
    model = tmp_path / "m.gguf"
    data = tiny.read_bytes()
    begin = weir_json("inspect", tiny)["tensors"][-2]["offset"]
    model.write_bytes(data)
    assert "zeros" not in weir("inspect", model, "--check", expect=0).err
    model.write_bytes(data[:begin] + bytes(len(data) - begin))
    done = weir("inspect", model, "--check", expect=0)
    assert "hold zeros alone" in done.err and "download" in done.err, done.show()


@pytest.mark.parametrize("value", (float("nan"), float("inf"), -float("inf")))
@pytest.mark.parametrize("name", ("blk.1.ffn_down.weight", "token_embd.weight", "blk.0.attn_norm.weight", "output.weight"))
def test_weights_that_are_not_finite(tmp_path, name, value):
    """A fatal error, not a text."""
    def spoil(tensor, x):
        if tensor == name:
            x[..., 5] = value
        return x

    model = tiny_model.write(tmp_path / "m.gguf", change=spoil)
    error = error_of("run", model, "hello", *RUN)
    assert error["code"] == "WEIR_E_NONFINITE" and error["exit"] == 1, error
    error = error_of("inspect", model, "--check")
    assert error["code"] == "WEIR_E_NONFINITE" and name in error["message"], error


def test_help_and_version():
    for words in (["help"], ["--help"], ["-h"], ["version"], ["--version"], ["help", "run"], ["run", "--help"], ["run", "-h"]):
        done = weir(*words, expect=0)
        assert done.out and done.err == ""
    assert set(weir_json("version")) >= {"version", "numerics", "levels", "io_engines", "formats"}


def test_the_reference_in_docs_is_that_of_help():
    assert weir("help", "--markdown", expect=0).out.decode() == (ROOT / "docs" / "CLI.md").read_text(encoding="utf-8"), "run: weir help --markdown > docs/CLI.md"


# ---- input and output ---------------------------------------------------------------------


def test_json_has_the_documented_members(tiny):
    done = weir_json("run", tiny, "hello", *RUN)
    assert set(done) >= {"model", "arch", "isa", "threads", "seed", "prompt_ids", "ids", "text", "finish", "n_prompt", "n_generated"}
    assert set(done) >= {"memory", "io", "residency", "rates", "stalls", "kv", "spec", "experts", "warnings"}
    assert set(done["memory"]) >= {"budget", "budget_origin", "peak_rss", "accounts"}
    assert set(done["memory"]["accounts"]) >= {"process", "weights_pinned", "ring", "kv", "scratch", "tokenizer", "meta", "text"}
    assert set(done["io"]) >= {"engine", "direct", "bytes_read", "bytes_written", "reads", "bytes_per_token", "floor_bytes_per_token"}
    assert set(done["io"]) >= {"bytes_read_weights", "bytes_read_kv", "bytes_read_experts"}
    assert set(done["residency"]) == {"pinned", "streamed", "cached"}
    assert set(done["rates"]) == {"prefill", "decode", "prefill_predicted", "decode_predicted", "predicted_from"}
    assert set(done["stalls"]) == {"io", "compute", "write"} and set(done["kv"]) >= {"type", "context", "resident", "on_disk"}
    assert set(done["spec"]) >= {"mode", "drafted", "accepted", "passes"}
    plan = weir_json("plan", tiny)
    assert set(plan) >= {"memory", "residency", "kv", "io", "rates", "bound", "min_budget", "max_context"} and plan["bound"] in ("disk", "memory", "compute")
    assert set(weir_json("eval", tiny, "-f", "/dev/stdin", stdin=b"some words")) >= {"model", "memory", "io", "n_tokens", "nll", "perplexity"}
    tensors = weir_json("inspect", tiny)["tensors"]
    assert tensors and all(set(tensor) >= {"name", "type", "shape", "offset", "bytes"} for tensor in tensors)


def test_plain_and_json_agree(tiny):
    done = weir_json("run", tiny, "hello", *GREEDY)
    plain = weir("run", tiny, "hello", *GREEDY, "-q", expect=0)
    assert plain.out.decode() == done["text"] and plain.err == ""
    assert done["n_prompt"] == len(done["prompt_ids"]) and done["n_generated"] == len(done["ids"]) == 8
    assert weir("detokenize", tiny, *done["ids"], expect=0).out.decode() == done["text"]


def test_prompt_from_everywhere(tiny, tmp_path):
    """Argument, -p, file and standard input are the same prompt; -m is the same model."""
    text = tmp_path / "prompt ü.txt"
    text.write_bytes("tea sea één".encode())
    expected = weir_json("run", tiny, "tea sea één", *GREEDY)["ids"]
    bytes_ = text.read_bytes()
    for words, stdin in ((["-p", "tea sea één"], b""), (["-f", text], b""), ([], bytes_), (["-f", "-"], bytes_), (["--", "tea sea één"], b"")):
        assert weir("run", tiny, *GREEDY, "--json", *words, stdin=stdin, expect=0).json["ids"] == expected, words
    assert weir_json("run", "-m", tiny, "tea sea één", *GREEDY)["ids"] == expected
    raw = weir_json("run", tiny, *GREEDY, stdin=b"tea\n")
    assert raw["prompt_ids"] != weir_json("run", tiny, *GREEDY, stdin=b"tea")["prompt_ids"], "--raw keeps the last newline"


def test_empty_prompts(tiny):
    assert error_of("run", tiny, *RUN, stdin=b"")["exit"] == 2


def test_environment(tiny):
    """Every option has a variable; the command line is nearer; a bad value names the variable."""
    expected = weir_json("run", tiny, "hello", *RUN, "--seed", 5)["ids"]
    assert weir_json("run", tiny, "hello", *RUN, env={"WEIR_SEED": 5})["ids"] == expected
    assert weir_json("run", tiny, "hello", *RUN, "--seed", 5, env={"WEIR_SEED": 6})["ids"] == expected
    assert weir_json("plan", tiny, env={"WEIR_MEMORY": "64M"})["memory"]["budget"] == 64 << 20
    for variable, value in (("WEIR_SEED", "x"), ("WEIR_MEMORY", "lots"), ("WEIR_RAW", "maybe"), ("WEIR_CPU", "pentium")):
        error = error_of("run", tiny, "hello", env={variable: value})
        assert error["exit"] == 2 and variable in error["message"], error
    for words in (("run", "hello"), ("run", tiny, "hello"), ("run", tiny, "-p", "hello"), ("run", "-m", tiny, "hello")):
        model = tiny if tiny not in words else "no/such/model.gguf"
        assert weir_json(*words, *RUN, "--seed", 5, env={"WEIR_MODEL": model})["ids"] == expected, words
    assert weir_json("plan", tiny, env={"WEIR_MODEL": "no/such/model.gguf"})["model"] == str(tiny)
    plan = weir_json("plan", tiny, env={"WEIR_MEMORY": "64M", "WEIR_MEMROY": "1"})
    assert plan["memory"]["budget_origin"] == "WEIR_MEMORY" and len(plan["warnings"]) == 1, plan
    assert "WEIR_MEMROY" in plan["warnings"][0] and plan["warnings"][0].endswith("did you mean WEIR_MEMORY?"), plan["warnings"]


def test_budget_beyond_the_memory(tiny):
    done = weir("plan", tiny, "--memory", "1000T", "--json", expect=0)
    assert len(done.json["warnings"]) == 1 and "--memory" in done.json["warnings"][0] and "available" in done.json["warnings"][0], done.show()
    assert done.err == f"weir: warning: {done.json['warnings'][0]}\n", done.show()


def test_more_threads_than_processors(tiny):
    n = len(os.sched_getaffinity(0)) + 1
    done = weir("run", tiny, "hello", *GREEDY, "-t", n, "--memory", "64M", "--json", expect=0)
    assert len(done.json["warnings"]) == 1 and done.json["warnings"][0].startswith(f"--threads {n}: this process has "), done.show()
    assert weir_json("run", tiny, "hello", *GREEDY, "-t", 1, "--memory", "64M")["warnings"] == []


def test_answer_cut_by_the_context(tiny):
    """The context ends it: a line says so. -n ends it: none does."""
    full = weir("run", tiny, "hello", "--raw", "--ignore-eos", "-c", 32, expect=0)
    assert full.err.splitlines()[-1] == "weir: the answer was cut at the end of the context of 32 positions; a larger -c has room for more", full.show()
    assert "cut" not in weir("run", tiny, "hello", "--raw", "--ignore-eos", "-c", 32, "-n", 2, expect=0).err


@pytest.mark.parametrize("folder", ["with spaces", "Umläute", "模型", "quote'\"s", "-dash", "100%s%n", "new\nline"])
def test_odd_paths(tiny, tmp_path, folder):
    path = tmp_path / folder / "model file.gguf"
    path.parent.mkdir()
    os.link(tiny, path)
    done = weir_json("run", path, "hello", *GREEDY)
    assert done["model"] == str(path) and done["ids"] == weir_json("run", tiny, "hello", *GREEDY)["ids"]
    out = path.parent / "logits ü.npy"
    weir("eval", path, "-f", "-", "--logits", out, stdin=b"hello", expect=0)
    assert np.load(out).shape[1] == 2000
    broken = path.with_name("broken.gguf")
    broken.write_bytes(b"x")
    assert "\n" not in error_of("run", broken, "x")["message"]


def test_path_that_is_not_utf8(tiny, tmp_path):
    """JSON stays JSON."""
    path = os.fsencode(tmp_path) + b"/m\xff\xfe.gguf"
    shutil.copy(tiny, path)
    done = weir("run", path, "hello", *GREEDY, "--json", expect=0)
    assert json.loads(done.out.decode())["n_generated"] == 8


def test_eval(tiny, tmp_path):
    """nll and perplexity from the logits file; text and ids are the same question; the npy header is the documented one."""
    text = tmp_path / "t"
    text.write_text("the tea is in the sea and the sun is on the tin")
    by_text = weir_json("eval", tiny, "-f", text, "--logits", tmp_path / "a.npy")
    stats = weir("eval", tiny, "-f", text, "--stats", expect=0).err
    assert re.search(r"^prefill +\d+ tokens in ", stats, re.M) and "\ndecode" not in stats, stats
    ids = weir_json("tokenize", tiny, "-f", text)["ids"]
    (tmp_path / "ids").write_text(json.dumps(ids))
    by_ids = weir_json("eval", tiny, "--ids", tmp_path / "ids", "--logits", tmp_path / "b.npy")
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes() and by_text["nll"] == by_ids["nll"]
    header = (tmp_path / "a.npy").read_bytes()[:128]
    assert header[:8] == b"\x93NUMPY\x01\x00" and b"'<f4'" in header and b"'fortran_order': False" in header
    x = np.load(tmp_path / "a.npy").astype(np.float64)
    assert x.shape == (len(ids), 2000) and by_ids["n_tokens"] == len(ids)
    nll = np.mean([np.log(np.exp(row - row.max()).sum()) + row.max() - row[i] for row, i in zip(x, ids[1:])])
    assert abs(by_ids["nll"] - nll) < 1e-9 * abs(nll) and abs(by_ids["perplexity"] / np.exp(nll) - 1) < 1e-9


@pytest.mark.parametrize("target", ["/dev/full", "/proc/version", "/no/such/folder/x.npy", "/"])
def test_logits_that_cannot_be_written(tiny, tmp_path, target):
    error = error_of("eval", tiny, "-f", "-", "--logits", target, stdin=b"some words here", cwd=tmp_path)
    assert error["exit"] == 5, error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ("logits", "tape", "synth"))
def test_written_file_in_the_place_of_another(tiny, tmp_path, command):
    """A link stays and its file is replaced; standard output under another name, a link to nowhere and a model are left alone."""
    words = {"logits": ("eval", tiny, "-f", "-", "--logits"), "tape": ("plan", tiny, "--tape"), "synth": ("synth", "tiny", "-o")}[command]
    for name in ("there", "out", "model.gguf"):
        (tmp_path / name).write_bytes(b"GGUF and more" if name == "model.gguf" else b"old")
    links = {"link": "folder/../there", "stdout": "/proc/self/fd/1", "nowhere": "missing", "model": "model.gguf"}
    (tmp_path / "folder").mkdir()
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    weir(*words, "link", stdin=b"some words", cwd=tmp_path, expect=0)
    assert (tmp_path / "there").read_bytes()[:3] != b"old"
    assert error_of(*words, "nowhere", stdin=b"some words", cwd=tmp_path)["exit"] == 5
    assert not (tmp_path / "missing").exists()
    with open(tmp_path / "out", "ab") as out:
        done = subprocess.run([WEIR, *words, "stdout"], input=b"some words", stdout=out, stderr=subprocess.PIPE, cwd=tmp_path, env=environment(), check=False)
    assert done.returncode == 5 and b"standard output" in done.stderr, done
    assert (tmp_path / "out").read_bytes() == b"old"
    if command != "synth":  # which writes models
        for name in ("model", "model.gguf"):
            assert "is a model" in error_of(*words, name, stdin=b"some words", cwd=tmp_path)["message"]
        assert (tmp_path / "model.gguf").read_bytes() == b"GGUF and more"
    assert all(os.readlink(tmp_path / name) == target for name, target in links.items())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["folder", "model.gguf", "out", "there", *links])


# ---- context and stops --------------------------------------------------------------------


def test_e2_over_long_prompt_reads_no_weight(smollm2):
    """Counted before the load: with a budget that would stream 98 MB."""
    error = error_of("run", smollm2, *RUN[:3], stdin=b"word " * 200)
    assert error["code"] == "WEIR_E_CONTEXT" and "128" in error["message"] and "201" in error["message"], error


def test_a4_default_context(tmp_path):
    """The smallest of trained, 4096 and what fits; -c 0 is the default; one million positions are not allocated because the file says so."""
    for trained in (300, 8192, 1 << 20, 1 << 30):
        model = tiny_model.write(tmp_path / "m.gguf", context=trained)
        for flags in ((), ("-c", 0)):
            plan = weir_json("plan", model, *flags)
            assert plan["kv"]["context"] == min(trained, 4096) and plan["trained_context"] == trained
    small = weir_json("plan", model, "--memory", weir_json("plan", model)["min_budget"])
    assert 16 <= small["kv"]["context"] < 4096
    assert error_of("run", model, "x", "-c", 1_000_000_000, "--memory", "100M")["exit"] == 3


def test_stop_strings(tiny):
    """The text ends exactly before the stop string that begins first, wherever tokens end."""
    flags = ("--raw", "--temp", 0, "--ignore-eos", "-c", 128, "-n", 40)
    whole = weir_json("run", tiny, "hello", *flags)
    text = whole["text"]
    pieces = [weir("detokenize", tiny, i, expect=0).out.decode(errors="replace") for i in whole["ids"]]
    border = len(pieces[0]) + len(pieces[1])
    for begin, end in ((border - 2, border + 3), (5, 6), (0, 4), (len(text) - 3, len(text))):
        stop = text[begin:end]
        first = text.index(stop)
        done = weir_json("run", tiny, "hello", *flags, "--stop", stop)
        assert done["text"] == text[:first] and done["finish"] == "stop", (stop, done["text"])
        assert done["n_generated"] <= whole["n_generated"]
        assert weir("run", tiny, "hello", *flags, "--stop", stop, "-q", expect=0).out.decode() == text[:first]
    two = weir_json("run", tiny, "hello", *flags, "--stop", text[20:24], "--stop", text[8:12], "--stop", "not in the text")
    assert two["text"] == text[: min(text.index(text[20:24]), text.index(text[8:12]))]
    never = weir_json("run", tiny, "hello", *flags, "--stop", text[-2:] + "?!")
    assert never["text"] == text and never["finish"] == "length", "what might have been a stop string is printed at the end"


def test_end_token(tiny):
    """A forced end token ends with `stop` and an empty text; --ignore-eos goes on."""
    flags = ("--raw", "-c", 64, "-n", 6, "--logit-bias", "0=1000")
    done = weir_json("run", tiny, "hello", *flags)
    assert done["finish"] == "stop" and done["text"] == ""
    on = weir_json("run", tiny, "hello", *flags, "--ignore-eos")
    assert on["finish"] == "length" and on["ids"] == [0] * 6 and on["text"] == ""
    assert weir_json("run", tiny, "hello", *flags, "--ignore-eos", "--special")["text"] == "<|endoftext|>" * 6


# ---- sampling -----------------------------------------------------------------------------


def test_seeds(tiny):
    """Same seed, same text; other seeds, other texts; seed 0 is the default; `random` says which it took, and that repeats it."""
    def ids(*flags):
        return weir_json("run", tiny, "hello", *RUN, *flags)["ids"]

    assert ids() == ids("--seed", 0) == ids()
    assert len({tuple(ids("--seed", seed)) for seed in range(8)}) == 8
    assert ids("--seed", 2**64 - 1) == ids("--seed", 2**64 - 1)
    done = weir_json("run", tiny, "hello", *RUN, "--seed", "random")
    assert ids("--seed", done["seed"]) == done["ids"]
    plain = weir("run", tiny, "hello", *RUN, "--seed", "random", expect=0)
    seed = re.search("^weir: seed ([0-9]+)$", plain.err, re.MULTILINE).group(1)
    assert weir("run", tiny, "hello", *RUN, "--seed", seed, expect=0).out == plain.out


def test_greedy_needs_no_seed(tiny):
    texts = {weir("run", tiny, "hello", *GREEDY, "--seed", seed, expect=0).out for seed in range(3)}
    assert len(texts) == 1
    assert weir_json("run", tiny, "hello", *RUN, "--top-k", 1)["text"].encode() in texts


def test_penalties(tiny):
    """A presence penalty beyond every logit forbids to repeat."""
    done = weir_json("run", tiny, "hello", "--raw", "-c", 128, "-n", 40, "--temp", 0, "--presence-penalty", 100)
    assert len(set(done["ids"])) == 40 and not set(done["ids"]) & set(done["prompt_ids"])


def test_output_in_the_place_of_the_input(tiny, tmp_path):
    """By whatever name and stream the text comes, --logits does not replace it."""
    text = tmp_path / "t.txt"
    text.write_text("[5, 6, 7]")
    (tmp_path / "link").symlink_to(text)
    for words in (("-f", text), ("--ids", text), ("-f", tmp_path / "link")):
        error = error_of("eval", tiny, *words, "--logits", text)
        assert error["exit"] == 5 and str(text) in error["message"] and "--logits" in error["message"], error
    with text.open("rb") as stream:
        done = subprocess.run([str(WEIR), "eval", str(tiny), "--logits", str(text)], stdin=stream, capture_output=True, env=environment(), check=False)
    assert done.returncode == 5 and text.read_text() == "[5, 6, 7]", done
    weir("eval", tiny, "--ids", text, "--logits", tmp_path / "out", expect=0)


def test_refused_budget_names_what_was_asked_for(smollm2):
    for words, named in ((("--pin", "100G"), "with this --pin,"), (("--ring", "1G"), "with this --ring,"),
                         (("--pin", "100G", "--ring", "1G"), "with this --pin and --ring,"), ((), None)):
        message = error_of("plan", smollm2, "--memory", "20M", *words)["message"]
        assert "needs --memory" in message and (named in message if named else "with this" not in message), message


def test_template_larger_than_its_memory(tmp_path):
    model = tiny_model.write(tmp_path / "m.gguf", "Q8_0", template="{# " + "x" * 3_000_000 + " #}")
    budget = weir_json("plan", model, "-c", 16)["min_budget"]
    message = error_of("run", model, "hi", "--memory", budget, "-c", 16)["message"]
    assert str(model) in message and "key tokenizer.chat_template of 3000006 bytes" in message and "--memory" in message, message


def test_level_that_the_system_refuses(tiny, levels):
    """A lower level than the CPU's is said, and computes the same; asked for a lower one, there is nothing to say."""
    if "amx" not in levels:
        pytest.skip("this CPU has no level that a system could refuse")
    refused = (sys.executable, os.path.join(os.path.dirname(__file__), "refuse.py"))
    plain, without, capped = (weir_json("run", tiny, "x", *GREEDY, *more, before=before) for before, more in (((), ()), (refused, ()), (refused, ("--cpu", "avx2"))))
    assert (plain["isa"], without["isa"], capped["isa"]) == ("amx", "avx512vnni", "avx2") and plain["text"] == without["text"] == capped["text"]
    said = [line for line in without["warnings"] if "amx" in line and "avx512vnni" in line]
    assert len(said) == 1 and not any("amx" in line for line in plain["warnings"] + capped["warnings"])
