# SPDX-License-Identifier: Apache-2.0
"""Saved contexts and keys and values on disk that other engines went wrong with: B2 with a saved context, F5, F6, F7, F8. F1 to F4 are in test_context.py."""
import errno
import json
import os
import re
import signal
import subprocess
import time

import context_file
import numpy as np
import pytest
import script_model
import tiny_model
from command import WEIR, environment, weir, weir_json
from terminal import terminal  # noqa: F401 (a fixture)

TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
GREEDY = ("--temp", 0, "--ignore-eos")


def least(model, *flags):
    """The smallest budget: keys and values beyond the tile that grows are on the disk."""
    return ("--memory", weir_json("plan", model, *flags)["min_budget"], *flags)


# ---- B2: direct I/O that is refused, of a file that is saved and read again ----

@pytest.mark.parametrize("fault", ({"DIRECT_OPEN": errno.EINVAL}, {"DIRECT_OPEN": errno.EOPNOTSUPP}, {"DIRECT_READ": 1}, {"DIRECT_READ": 4}), ids=str)
def test_b2_a_saved_context(tmp_path, shim, fault):
    """Refused at open or at a read: the same tokens and the same file through the page cache, with one warning for each file that it is about."""
    model = tiny_model.write(tmp_path / "m.gguf", "Q8_0")
    (tmp_path / "text").write_text("x" * 700)
    budget = least(model, "-c", 2048, "--chunk", 64, "--io", "pread", "--kv-dir", tmp_path)
    first = ("run", model, "--raw", "-f", tmp_path / "text", "-n", 8, *GREEDY, *budget, "--save-context")
    then = ("run", model, "--raw", "and then", "-n", 8, *GREEDY, *budget, "--context")
    expected = weir_json(*first, tmp_path / "good.kv"), weir_json(*then, tmp_path / "good.kv")
    if not expected[0]["io"]["direct"]:
        pytest.skip("this file system does not read directly: there is nothing to refuse")
    done = weir_json(*first, tmp_path / "made.kv", env=shim(**fault)), weir_json(*then, tmp_path / "made.kv", env=shim(**fault))
    assert [one["ids"] for one in done] == [one["ids"] for one in expected]
    made, good = context_file.ContextFile(tmp_path / "made.kv"), context_file.ContextFile(tmp_path / "good.kv")
    made.check()
    assert made.ids == good.ids and made.crcs == good.crcs
    for one in done:
        said = [re.sub(r".*?([\w.]+\.(?:gguf|kv)|\(a file without a name\)).*", r"\1", line) for line in one["warnings"] if "page cache" in line]
        assert said and len(said) == len(set(said)), one["warnings"]


# ---- F5: a text that is tokenized again differs from the tokens that made it ----

def test_f5_an_answer_in_other_tokens(tmp_path):
    """The answer came as a, b; in the next turn the same text is the token ab: what is kept ends before it, and the turn is that of a cold run."""
    words = ["<unk>", "<s>", "</s>", "a", "b", "c", "\u010a", "ab"]
    keys = {"model": "gpt2", "pre": "gpt-2", "bos_token_id": 1, "eos_token_id": 2, "add_bos_token": False}
    model = script_model.write(tmp_path / "m.gguf", words, [2, 3, 3, 1, 1, 1, 1, 1], {5: 3, 3: 4, 4: 2, 7: 2, 6: 5}, merges=["a b"], **keys)
    done = weir("chat", model, "--stdin", "--temp", 0, "-n", 8, "--json", "--stats", stdin=b"c\nc\n", expect=0)
    assert [json.loads(line)["text"] for line in done.out.splitlines()] == ["ab", "ab"]
    cold = weir_json("run", model, "--raw", "cab\nc", "--temp", 0, "-n", 8)
    assert cold["prompt_ids"] == [5, 7, 6, 5] and cold["ids"] == [3, 4] and cold["text"] == "ab"
    prefill, decode = (int(re.search(rf"^{phase} +(\d+) tokens", done.err, re.M)[1]) for phase in ("prefill", "decode"))
    assert prefill == 1 + 3 and decode == 2 + 2, done.show()  # of the second turn's four tokens the first one was there


# ---- F6: what was saved at the end is found at the next start ----

def test_f6_ended_by_sigterm(tmp_path, terminal):  # noqa: F811
    """A conversation that was saved, and a run that saves as it goes, ended by SIGTERM: the next start evaluates the new turn alone."""
    model = tiny_model.write(tmp_path / "m.gguf", "Q8_0", template=TEMPLATE)
    chat = terminal("chat", model, *GREEDY, "-n", 20)
    chat.expect_prompt()
    chat.type(b"tell me of the rain " + b"x" * 200 + b"\r")
    chat.expect_prompt()
    chat.type(f"/save {tmp_path / 'chat.kv'}\r".encode())
    chat.expect(b"are saved")
    chat.expect_prompt()
    os.kill(chat.pid, signal.SIGTERM)
    assert chat.end() == 130
    run = subprocess.Popen([str(WEIR), "run", str(model), "--raw", "y" * 300, "-n", "100000", "--temp", "0", "--ignore-eos", "-c", "65536", "--save-context",
                            str(tmp_path / "run.kv")], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    time.sleep(1.5)
    run.send_signal(signal.SIGTERM)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    for name in ("chat.kv", "run.kv"):
        history = context_file.ContextFile(tmp_path / name).ids
        assert len(history) > 200
        again = weir_json("run", model, "--raw", "[user]go on\n", "-n", 4, *GREEDY, "-c", 65536, "--context", tmp_path / name)
        assert again["prompt_ids"][:len(history)] == history and again["n_cached"] == len(history) > 0.9 * len(again["prompt_ids"])
        assert again["n_evaluated"] == len(again["prompt_ids"]) - len(history) + 3


# ---- F7: a part of a context with a window is taken back ----

def same_keys_and_values(one, other):
    """Of the tokens of both files, in all layers; what lies behind the last token has no meaning."""
    assert one.ids == other.ids
    for layer in range(one.about["n_layer"]):
        for a, b in zip(one.keys_values(layer), other.keys_values(layer)):
            assert np.array_equal(a.view(np.uint16), b.view(np.uint16)), layer


@pytest.mark.parametrize("where", ("memory", "disk"))
@pytest.mark.parametrize("arch", ("gemma3", "llama"))
def test_f7_the_last_message_is_edited(tmp_path, terminal, arch, where):  # noqa: F811
    """A window of 16 positions, more than three of them behind, in the first tile and in the second; the last message is taken back and another one said: keys
    and values are those of a cold run of the same tokens, to the bit."""
    model = tiny_model.write(tmp_path / "m.gguf", "Q8_0", arch=arch, template=TEMPLATE)
    flags = ("-c", 2048, "--chunk", 32, "--kv-dir", tmp_path)
    budget = least(model, *flags) if where == "disk" else ("--memory", "1G", *flags)
    chat = terminal("chat", model, *GREEDY, "-n", 9, *budget)
    chat.expect_prompt()
    for line in ("a story " + "x" * 60, "and " + "y" * 250, "/undo", "or " + "z" * 210, "go on " + "y" * 300, "/undo", "no, " + "w" * 40, f"/save {tmp_path / 'edited.kv'}"):
        chat.type(line.encode() + b"\r")
        chat.expect_prompt()
    chat.type(b"/bye\r")
    assert chat.end() == 0
    edited = context_file.ContextFile(tmp_path / "edited.kv")
    edited.check()
    words = "".join(tiny_model.tokens()[i] for i in edited.ids)
    assert len(edited.ids) > 256 + 48 and "z" * 210 in words and "w" * 40 in words and "yy" not in words
    (tmp_path / "ids.json").write_text(json.dumps(edited.ids))
    weir("eval", model, "--ids", tmp_path / "ids.json", "-c", 2048, "--save-context", tmp_path / "cold.kv", expect=0)
    same_keys_and_values(edited, context_file.ContextFile(tmp_path / "cold.kv"))


# ---- F8: what is on disk has a limit, and leaves nothing ----

def test_f8_the_limit_holds(tmp_path):
    """40 texts, each with 0.9 MB of keys and values on disk, and --kv-disk 1M: what the process holds there is never more, at whatever moment one looks;
    what does not fit is refused before anything is written; nothing is left in the folder."""
    folder = tmp_path / "kv"
    folder.mkdir()
    model = tiny_model.write(tmp_path / "m.gguf", "Q8_0")
    flags = least(model, "-c", 2048, "--chunk", 64, "--kv-dir", folder)
    most = looks = 0
    for i in range(40):
        (tmp_path / "ids.json").write_text(json.dumps(np.random.default_rng(i).integers(1, len(tiny_model.tokens()), 1800).tolist()))
        words = [str(WEIR), "eval", str(model), "--ids", str(tmp_path / "ids.json"), "--kv-disk", "1M", *map(str, flags), "--json"]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as run:
            while run.poll() is None:
                held = 0
                try:
                    for fd in os.listdir(f"/proc/{run.pid}/fd"):
                        if os.readlink(f"/proc/{run.pid}/fd/{fd}").startswith(str(folder)):
                            held = max(held, os.stat(f"/proc/{run.pid}/fd/{fd}").st_blocks * 512)
                except OSError:
                    pass  # it has just ended, or closed the file
                held += sum(entry.stat().st_blocks * 512 for entry in os.scandir(folder))
                most, looks = max(most, held), looks + (held > 0)
                time.sleep(0.002)
            done = json.loads(run.stdout.read())
        assert run.returncode == 0 and done["io"]["bytes_written"] > 500000, done
        assert os.listdir(folder) == []
    assert looks > 0 and 0 < most <= 1 << 20, (most, looks)
    refused = weir("run", model, "--raw", "x", "-n", 2, "-c", 65536, "--kv-disk", "8M", "--kv-dir", folder, *least(model, "-c", 65536, "--kv-dir", folder)[:2], "--json",
                   expect=3).json["error"]
    assert "--kv-disk" in refused["message"] and os.listdir(folder) == []
