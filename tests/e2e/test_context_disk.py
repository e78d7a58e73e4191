# SPDX-License-Identifier: Apache-2.0
"""Saved contexts and the disk: keys and values that do not fit in memory beside a file that is loaded or saved, what opening reads, room, hostile files."""
import json
import os
import shutil
import subprocess

import context_file
import numpy as np
import pytest
import tiny_model
from command import weir, weir_json, weir_measured
from terminal import terminal  # noqa: F401 (a fixture)
from test_context import TEMPLATE, folder, ids_of, least, limited, llama, model, saved, talk, write_ids  # noqa: F401 (three are fixtures)


def test_hostile_numbers(folder, llama):  # noqa: F811
    """F4: files that another program wrote, sound but for what they say: no memory is taken by it, no name breaks a line, and the error names the file."""
    path = folder / "hostile.kv"

    def refused(words, pieces, *flags, code=1):
        path.unlink(missing_ok=True)
        with open(path, "wb") as file:
            for at, data in pieces:
                file.seek(at)
                file.write(data)
        for command in (("inspect", path, *flags), ("run", llama, "--raw", "x", "-n", 1, "--context", path)):
            done = weir_measured(*command, expect=code)
            assert "hostile.kv" in done.err and done.usage["max_rss"] < 40 << 20 and done.err.count("\n") == 1, (done.show(), done.usage)
            assert command[0] == "run" or words in done.err, done.show()
            assert done.err.isprintable() or done.err[:-1].isprintable(), done.err

    path.write_bytes(context_file.write([5, 6, 7]))
    assert weir_json("inspect", path, "--check")["tokens"] == 3
    refused("layer 0", context_file.pieces([5, 6, 7], block_bytes=1 << 29), "--check")
    refused("truncated", context_file.pieces([5, 6, 7], block_bytes=1 << 29)[1:])
    refused("truncated", [(0, context_file.write([], n_weights=1 << 20)[:65536])])
    refused("name", context_file.pieces([5], arch=b"\xff\xfe\x1b[2J"))
    refused("do not fit", context_file.pieces([5], n_layer=1, record_bytes=8192))
    refused("vocabulary", context_file.pieces([5], n_vocab=5))
    path.write_bytes(context_file.write([5], model=b"\x1b]0;x\x07\xc3"))
    assert weir_json("inspect", path)["model"].isprintable()


def test_opening_reads_records_alone(folder, llama, say):  # noqa: F811
    """Where keys and values stay on the disk, what opening a saved context reads grows with its positions by the records alone, and not by the time of a
    pass over it; damage in a record is found before the weights are read."""
    sizes = (1024, 13312)
    paths = [saved_long(llama, folder, n) for n in sizes]
    flags = ["-c", 16384, "--io", "pread"]
    flags += ["--memory", weir_json("plan", llama, *flags)["min_budget"]]

    def open_(*more, expect=0):
        done = [weir_measured("chat", llama, "--stdin", *flags, *more, expect=expect) for _ in range(3)]
        return done[0].usage["read_chars"], min(one.usage["cpu"] for one in done)

    (few, _), (many, cpu), (_, none) = open_("--context", paths[0]), open_("--context", paths[1]), open_()
    n_records = (sizes[1] - sizes[0]) // 256
    group = context_file.ContextFile(paths[0]).group_bytes
    assert many - few <= 2 * n_records * 4096 + 65536 < n_records * group // 8, (few, many)
    assert cpu - none <= 1
    say(f"measured: opening a saved context of {sizes[1]} tokens takes {1000 * (cpu - none):.0f} ms of computing more than none, and reads {(many - few) / n_records / 4096:.1f} records a group")
    data = bytearray(paths[1].read_bytes())
    file = context_file.ContextFile(paths[1])
    data[file.group_at(40) + 2 * file.about["block_bytes"] + 100] ^= 1
    bad = folder / "record.kv"
    bad.write_bytes(data)
    done = weir_measured("chat", llama, "--stdin", *flags[:4], "--memory", "1G", "--context", bad, expect=1)
    whole = weir_measured("chat", llama, "--stdin", *flags[:4], "--memory", "1G", expect=0)
    assert "record of tokens 10240 to 10495" in done.err, done.show()
    assert done.usage["read_chars"] < whole.usage["read_chars"] - weir_json("plan", llama, *flags[:4], "--memory", "1G")["residency"]["pinned"] + 65536 + 60 * 4096


def saved_long(model, folder, n):
    path = folder / f"long{n}.kv"
    weir("eval", model, "--ids", write_ids(folder, ids_of(n, 4)), "-c", 16384, "--save-context", path, expect=0)
    return path


def spilled_save(folder, llama, *more):
    (folder / "ids.json").write_text(json.dumps(ids_of(1500)))
    return ["eval", llama, "--ids", folder / "ids.json", *least(llama, "--chunk", 64), "-c", 2048, *more]


def test_room_for_what_is_saved(folder, llama):  # noqa: F811
    """Keys and values that do not fit in memory lie in the file that they are saved in: --kv-disk bounds that file, its room is taken before anything is
    evaluated and given back at the end, and a disk without it is an error that leaves the old file as it was."""
    own = folder / "room"
    own.mkdir()
    old = saved(llama, own, ids_of(300), "old.kv")
    data = old.read_bytes()
    file = context_file.ContextFile(old)
    whole = file.start + (2 + 2048 // 256) * file.group_bytes
    refused = weir(*spilled_save(folder, llama, "--save-context", old, "--kv-disk", "1M", "--json"), expect=3).json["error"]
    assert refused["code"] == "WEIR_E_BUDGET" and f"--kv-disk {-(-whole // (1 << 20))}M" in refused["message"] and "old.kv" in refused["message"]
    early = weir(*spilled_save(folder, llama, "--save-context", old, "--kv-disk", "512K", "--json"), expect=3).json["error"]  # refused by the blocks alone
    assert f"--kv-disk {-(-whole // (1 << 20))}M" in early["message"], early
    for name in ("old.kv", "new.kv"):
        done = limited(whole - 4096, *spilled_save(folder, llama, "--save-context", own / name))
        assert done.code == 5 and name in done.err, done.show()
        assert old.read_bytes() == data and set(os.listdir(own)) == {"old.kv", "ids.json"}
        done = limited(whole - 4096, *spilled_save(folder, llama, "--context", old, "--save-context", old))
        assert done.code == 5 and "old.kv" in done.err and old.read_bytes() == data
    done = weir_json(*spilled_save(folder, llama, "--save-context", own / "new.kv", "--kv-disk", (whole >> 20) + 1 << 20))
    assert done["kv"]["on_disk"] == whole
    new = context_file.ContextFile(own / "new.kv")
    new.check()
    assert new.ids == ids_of(1500) and len(new.data) == new.start + (2 + 5) * new.group_bytes
    assert len(new.data) <= os.stat(own / "new.kv").st_blocks * 512 + 8 * 4096 <= len(new.data) + 65536  # the places of the last group too
    shown = weir(*spilled_save(folder, llama, "--save-context", own / "new.kv", "--verbose"), expect=0).err
    assert f"--save-context {own / 'new.kv'}" in shown, shown


def test_without_proc(folder, llama):  # noqa: F811
    """A file gets its name through /proc where that is mounted; where it is not, it has one of its own from the beginning, and nothing is lost at the end."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("hiding /proc takes root and unshare")
    own = folder / "without_proc"
    own.mkdir()
    hide = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    if subprocess.run([*hide, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("/proc cannot be hidden here")
    for n in (300, 400):  # new, and in place of another one
        words = ["eval", llama, "--ids", write_ids(folder, ids_of(n)), "-c", 2048, "--memory", "1G", "-t", 1, "--save-context", own / "some.kv"]
        weir(*words, before=hide, expect=0)
        file = context_file.ContextFile(own / "some.kv")
        file.check()
        assert file.ids == ids_of(n) and os.listdir(own) == ["some.kv"]


def test_load_where_it_does_not_fit(folder, terminal, model):  # noqa: F811
    """/load with keys and values on the disk: behind one file, behind another, with damaged ones and one of other weights refused in between and the
    conversation as it was: the files that are saved then are those of a chat that has them in memory, to the bit."""
    flags = ["--temp", 0, "-n", 12, "--ignore-eos", "-c", 2048, "--chunk", 64]
    chat = tiny_model.write(folder / "load.gguf", "Q8_0", template=TEMPLATE, arch="gemma3" if "gemma3" in model.name else "llama")
    long, short, bad, twins, tail, cut = (folder / f"load_{name}.kv" for name in ("long", "short", "bad", "twins", "tail", "cut"))
    twin = tiny_model.write(folder / "load_twin.gguf", "Q8_0", template=TEMPLATE, arch="gemma3" if "gemma3" in model.name else "llama",
                            change=lambda name, x: x + 1 if name == "blk.1.ffn_down.weight" else x)
    for path, n, by in ((long, 1000, chat), (short, 300, chat), (twins, 600, twin)):
        path.unlink(missing_ok=True)
        weir("eval", by, "--ids", write_ids(folder, ids_of(n, 7)), "-c", 2048, "--save-context", path, expect=0)
    file = context_file.ContextFile(long)
    data = bytearray(long.read_bytes())
    data[file.group_at(1) + 2 * file.about["block_bytes"] + 40] ^= 1
    bad.write_bytes(data)
    data = bytearray(long.read_bytes())
    data[file.group_at(3) + file.about["block_bytes"] + 40] ^= 1
    tail.write_bytes(data)
    cut.write_bytes(long.read_bytes()[:-4096])
    shown = []
    for where, plan in (("memory", ["--memory", "1G"]), ("disk", ["--memory", weir_json("plan", chat, "-c", 2048, "--chunk", 64)["min_budget"]])):
        def path(i):
            return folder / f"load_{where}{i}.kv"
        for i in range(3):
            path(i).unlink(missing_ok=True)
        one = talk(terminal, ["chat", chat, *flags, *plan], [
            ("hello " + "x" * 600, ""), (f"/load {long}", "1000 tokens from"), ("go on", ""), (f"/save {path(0)}", "are saved"), (f"/load {bad}", "is damaged"),
            (f"/load {tail}", "tokens 768 to 999 in layer 1 are damaged"), (f"/load {cut}", "is truncated"), (f"/load {twins}", "ffn_down"),
            ("and on " + "y" * 300, ""), (f"/save {path(1)}", "are saved"), (f"/load {short}", "300 tokens from"), ("what " + "z" * 300, ""), ("/undo", ""),
            ("then " + "w" * 290, ""), (f"/save {path(2)}", "are saved"), ("/stats", "")])
        shown.append([context_file.ContextFile(path(i)) for i in range(3)])
        assert (b"do not fit in memory" in one.shown) == (where == "disk"), one.shown
    for a, b in zip(*shown):
        a.check()
        b.check()
        assert a.ids == b.ids and len(a.ids) > 300 and a.weights == b.weights
        for layer in range(a.about["n_layer"]):
            for x, y in zip(a.keys_values(layer), b.keys_values(layer)):
                assert np.array_equal(x.view(np.uint16), y.view(np.uint16))
    assert shown[0][1].ids[:1000] == file.ids and shown[0][2].ids[:300] == ids_of(300, 7)
