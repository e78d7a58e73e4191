# SPDX-License-Identifier: Apache-2.0
"""Keys and values that do not fit in memory: the same bits as in memory whatever is read back, what is counted, what is refused, nothing left behind."""
import os
import signal
import subprocess
import time

import context_file
import numpy as np
import pytest
import tiny_model
from command import WEIR, environment, weir, weir_json
from test_same_bits import Evaluator

BLOCK = {"f16": 65536, "q8_0": 36864, "f32": 131072}  # of the tiny models: 256 positions x 2 heads x 32 dimensions of keys and values, in pages of 4096


def least(model, *flags):
    return weir_json("plan", model, *flags)["min_budget"]


def tiny_ids(n):
    return np.random.RandomState(3).randint(1, len(tiny_model.tokens()), size=n).tolist()


# chunk, threads, engine, direct, blocks of memory beyond the least, and whether weights are streamed too
ROWS = [(1, 2, "auto", "auto", 0, False), (7, 1, "pread", "auto", 1, False), (64, 3, "auto", "off", 2, False), (512, 2, "pread", "auto", 0, False),
        (16, 2, "auto", "auto", 2, True), (300, 1, "auto", "auto", 1, True)]


def spilled(evaluator, n, kv, row, folder, context):
    chunk, threads, io, direct, blocks, streams = row
    flags = ["-c", context, "--kv", kv, "--chunk", chunk, "-t", threads, "--io", io, "--direct", direct, "--kv-dir", folder]
    if streams:
        flags += ["--pin", 0, "--extent", 4096, "--ring", "128K"]
    flags += ["--memory", least(evaluator.model, *flags) + blocks * BLOCK[kv]]
    done = evaluator.compare(n, flags)
    assert (done["residency"]["streamed"] > 0) == streams, row
    assert done["kv"]["on_disk"] > 0 and done["io"]["bytes_written"] > 0 and done["io"]["bytes_read_kv"] > 0, (row, done["kv"], done["io"])
    assert any("--kv-dir" in warning for warning in done["warnings"]), done["warnings"]
    assert done["memory"]["peak_rss"] <= done["memory"]["budget"]
    assert os.listdir(folder) == []
    return done


@pytest.mark.parametrize("arch, kv", [("llama", "f16"), ("llama", "f32"), ("qwen2", "q8_0"), ("gemma3", "f16"), ("gemma3", "q8_0")])
def test_same_bits(tmp_path, arch, kv):
    """900 positions; gemma3 has a layer with a window beside one without."""
    folder = tmp_path / "kv"
    folder.mkdir()
    model = tiny_model.write(tmp_path / "tiny.gguf", "Q8_0", arch=arch)
    evaluator = Evaluator(model, tiny_ids(900), 2560, tmp_path)
    evaluator.compare(900, ["-c", 2560, "--kv", kv, "--memory", "1G"])
    for row in ROWS:
        spilled(evaluator, 900, kv, row, folder, 2560)


def test_spans(tmp_path):
    """Two borders of a span, at 4096 and 8192, seen from behind: in a chunk, and row by row at the end."""
    folder = tmp_path / "kv"
    folder.mkdir()
    model = tiny_model.write(tmp_path / "tiny.gguf", "Q8_0", context=16384)
    evaluator = Evaluator(model, tiny_ids(8300), 8448, tmp_path)
    evaluator.compare(8300, ["-c", 8448, "--memory", "1G"])
    spilled(evaluator, 8300, "f16", (512, 2, "auto", "auto", 0, False), folder, 8448)
    spilled(evaluator, 8300, "f16", (512, 2, "auto", "auto", 9, False), folder, 8448)


def test_smollm2(smollm2, tmp_path):
    folder = tmp_path / "kv"
    folder.mkdir()
    ids = np.random.RandomState(5).randint(1, 49000, size=600).tolist()
    evaluator = Evaluator(smollm2, ids, 2560, tmp_path)
    evaluator.compare(600, ["-c", 2560, "--memory", "1G"])
    flags = ["-c", 2560, "--kv-dir", folder, "--chunk", 200]
    done = evaluator.compare(600, [*flags, "--memory", least(smollm2, *flags)])
    assert done["kv"]["on_disk"] > 0 and done["io"]["bytes_read_kv"] > 0


def test_a_text_and_what_is_counted(tmp_path):
    """The same text; a decode pass reads the full tiles of each layer, full tiles are written once."""
    folder = tmp_path / "kv"
    folder.mkdir()
    model = tiny_model.write(tmp_path / "tiny.gguf", "Q8_0")
    (tmp_path / "text").write_text("x" * 500)  # a token each
    flags = ("-f", tmp_path / "text", "--raw", "-n", 300, "--temp", 0, "--ignore-eos", "-c", 2048, "--chunk", 64, "--spec", "off")
    expected = weir_json("run", model, *flags, "--memory", "1G")
    memory = least(model, "-c", 2048, "--chunk", 64)
    done = weir_json("run", model, *flags, "--memory", memory, "--kv-dir", folder)
    assert done["ids"] == expected["ids"] and done["n_generated"] == 300
    first = done["n_prompt"]
    blocks = sum(2 * (position // 256) for position in range(first, first + 299))  # 2 layers; the first generated token is of the prefill
    assert done["io"]["bytes_per_token_kv"] * 299 == pytest.approx(blocks * BLOCK["f16"], rel=1e-9)
    assert done["io"]["bytes_written"] == 2 * ((first + 299) // 256) * BLOCK["f16"]
    plan = weir_json("plan", model, "-c", 2048, "--chunk", 64, "--memory", memory, "--kv-dir", folder)
    assert plan["kv"] == done["kv"] and plan["io"]["bytes_per_token_kv"] == 2 * 7 * BLOCK["f16"] and plan["kv"]["on_disk"] == 2 * 8 * BLOCK["f16"]
    assert os.listdir(folder) == []


def test_refused(tmp_path):
    model = tiny_model.write(tmp_path / "tiny.gguf", "Q8_0")
    memory = least(model, "-c", 2048)
    run = ("run", model, "hello", "--raw", "-n", 2, "-c", 2048, "--memory", memory)
    for disk, word in ((0, "--kv-disk 1M, not 0M"), ("900K", "--kv-disk 1M, not 0M")):
        refused = weir(*run, "--kv-disk", disk, "--kv-dir", tmp_path, "--json", expect=3).json["error"]
        assert refused["code"] == "WEIR_E_BUDGET" and word in refused["message"], refused
    assert weir_json(*run, "--kv-disk", "1M", "--kv-dir", tmp_path)["kv"]["on_disk"] == 1 << 20
    assert "--kv-dir" in weir(*run, "--kv-dir", tmp_path / "missing", expect=5).err
    assert "memory" in weir(*run, "--kv-dir", "/dev/shm", expect=5).err
    cache = tmp_path / "cache"
    assert weir_json(*run, env={"XDG_CACHE_HOME": cache})["kv"]["on_disk"] > 0
    assert list((cache / "weir" / "kv").iterdir()) == []


def test_without_a_context_the_disk_is_not_used(tmp_path):
    model = tiny_model.write(tmp_path / "tiny.gguf", "Q8_0")
    flags = ("--kv", "f32", "--memory", least(model, "--kv", "f32") + 3000000)
    plan = weir_json("plan", model, *flags)
    assert plan["kv"]["on_disk"] == 0 and plan["kv"]["context"] < plan["max_context"]
    asked = weir_json("plan", model, *flags, "--kv-dir", tmp_path)
    assert asked["kv"]["context"] > plan["kv"]["context"] and asked["kv"]["on_disk"] > 0


def written(pid):
    with open(f"/proc/{pid}/io", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def test_interrupted(tmp_path):
    """Ctrl-C in the midst of a prefill: 130 and no file left; where the context is saved, what was done is kept, and a run that goes on from there is as one
    that was never interrupted."""
    folder = tmp_path / "kv"
    folder.mkdir()
    model = tiny_model.write(tmp_path / "tiny.gguf", "Q8_0", context=1 << 17)
    (tmp_path / "text").write_text("x" * 60000)  # a token each
    flags = ["-c", 1 << 16, "--chunk", 64, "--kv-dir", folder]
    flags += ["--memory", least(model, *flags)]
    for saved in ((), ("--save-context", tmp_path / "saved.kv")):
        words = [str(WEIR), "run", str(model), "--raw", "-f", str(tmp_path / "text"), "-n", "1", *map(str, [*flags, *saved])]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        while process.poll() is None and written(process.pid) < 2 << 20:  # sixteen tiles of two layers
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 130 and b"error" not in err, err
        assert os.listdir(folder) == []
    file = context_file.ContextFile(tmp_path / "saved.kv")
    file.check()
    n = len(file.ids)
    assert 2048 <= n < 60000 and n % 64 == 0
    on = ("--raw", "-n", 4, "--temp", 0, "--ignore-eos")
    text = "x" * (n - (file.ids[0] != file.ids[1]))  # less the token that the model begins every text with
    (tmp_path / "text").write_text(text + "xx")
    expected = weir_json("run", model, "-f", tmp_path / "text", *on, "-c", 1 << 16, "--memory", "1G")
    assert expected["prompt_ids"][:n] == file.ids
    resumed = weir_json("run", model, "--context", tmp_path / "saved.kv", "-p", "xx", *on, *flags)
    assert resumed["ids"] == expected["ids"] and os.listdir(folder) == []
