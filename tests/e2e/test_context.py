# SPDX-License-Identifier: Apache-2.0
"""Saved contexts: a resumed run equals a cold one bit for bit, and a file that is not of this model, damaged, or cut short by kill -9 or a full disk is
named or holds what was committed. The ids in the docstrings are those of the project's list of what users of other engines met."""
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import time

import context_file
import gguf
import numpy as np
import pytest
import tiny_model
from command import WEIR, environment, weir, weir_json, weir_measured
from terminal import terminal  # noqa: F401 (a fixture)

N_VOCAB = len(tiny_model.tokens())


def ids_of(n, seed=1):
    return np.random.default_rng(seed).integers(1, N_VOCAB, n).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("context")


@pytest.fixture(scope="module", params=tiny_model.ARCHES)
def model(request, folder):
    return tiny_model.write(folder / f"{request.param}.gguf", "Q8_0", arch=request.param)


@pytest.fixture(scope="module")
def llama(folder):
    return tiny_model.write(folder / "one.gguf", "Q8_0")


def run_ids(model, folder, ids, *flags, logits=True, expect=0):
    """Evaluates ids behind --context, if flags have one: the object, and the logits of the ids as bits."""
    (folder / "ids.json").write_text(json.dumps(ids))
    out = ["--logits", folder / "logits.npy"] if logits else []
    done = weir("eval", model, "--ids", folder / "ids.json", "-c", 2048, *out, *flags, "--json", expect=expect)
    return done.json, np.load(folder / "logits.npy").view(np.uint32) if logits and expect == 0 else None


def saved(model, folder, ids, name, *flags):
    path = folder / name
    path.unlink(missing_ok=True)
    run_ids(model, folder, ids, "--save-context", path, *flags, logits=False)
    return path


def least(model, *flags):
    return ["--memory", weir_json("plan", model, "-c", 2048, "--pin", 0, *flags)["min_budget"], "--pin", 0, *flags]


def test_resumed_equals_cold(model, folder):
    """F1, F3, F7: whatever the length that was saved, and by whatever plan, the rest has the logits of one run; only the rest is evaluated. gemma3 has a
    window of 16 positions, of which many are behind it."""
    ids = ids_of(1100)
    for kv in ("f16", "q8_0", "k8v4", "f32"):
        cold, logits = run_ids(model, folder, ids, "--kv", kv)
        plans = [["--kv", kv], least(model, "--kv", kv, "-t", 2), ["--kv", kv, "--chunk", 7, "--io", "pread"], ["--kv", kv, "--direct", "off", "-t", 1]]
        for i, n in enumerate((2, 255, 256, 257, 777) if kv == "f16" else (300,)):
            path = saved(model, folder, ids[:n], "some.kv", *plans[i % 4])
            file = context_file.ContextFile(path)
            assert file.ids == ids[:n]
            file.check()
            for plan in (plans[(i + 1) % 4], plans[(i + 2) % 4]):
                warm, rest = run_ids(model, folder, ids[n:], "--context", path, *plan)
                assert np.array_equal(rest, logits[n:]), (kv, n, plan)
                assert warm["n_cached"] == n and warm["n_evaluated"] == len(ids) - n and warm["n_prompt"] == len(ids)
                assert warm["memory"]["peak_rss"] <= warm["memory"]["budget"]
                assert ("--pin" in plan) == (warm["kv"]["on_disk"] > 0)  # keys and values are resident and streamed
            assert context_file.ContextFile(path).data == file.data  # it was only read


def test_grows_in_place_and_into_another(model, folder):
    """In steps, each by another plan: the same file as in one go, but for the number of commits and which of the two places has the tail."""
    ids = ids_of(900, 2)
    whole = context_file.ContextFile(saved(model, folder, ids, "whole.kv"))
    path = saved(model, folder, ids[:100], "steps.kv")
    for begin, end, plan in ((100, 256, []), (256, 300, ["--chunk", 3]), (300, 700, least(model)), (700, 900, ["-t", 1])):
        run_ids(model, folder, ids[begin:end], "--context", path, "--save-context", path, *plan, logits=False)
    other = folder / "other.kv"
    run_ids(model, folder, ids_of(5), "--context", path, "--save-context", other, logits=False)
    for name, n in ((path, 900), (other, 905)):
        file = context_file.ContextFile(name)
        file.check()
        assert file.ids[:900] == ids and len(file.ids) == n and file.weights == whole.weights and file.rows[:3] == whole.rows[:3]
        for tile in range(3):
            assert [file.block(tile, layer) for layer in range(2)] == [whole.block(tile, layer) for layer in range(2)]
    assert [p.name for p in folder.iterdir() if ".part" in p.name or ".weir" in p.name] == []


def test_weights_of_the_table(model, folder):
    """The table has the crc of every tensor's bytes in the model's file, but of the embedding where rows alone are used; the same at every budget."""
    ids = ids_of(300)
    reader = gguf.GGUFReader(model)
    crcs = {}
    for t in reader.tensors:
        shape = [int(n) for n in t.shape] + [1] * (4 - len(t.shape))
        identity = context_file.crc32c(t.name.encode() + b"\0" + struct.pack("<I4Q", int(t.tensor_type), *shape))
        crcs[identity] = (t.name, context_file.crc32c(t.data.tobytes()))
    tables = []
    for plan in ([], least(model), ["--extent", "8192", "--pin", "40000", "--io", "pread"], ["--io", "mmap"]):
        file = context_file.ContextFile(saved(model, folder, ids, "table.kv", *plan))
        assert all(known == 1 and crcs[identity][1] == crc for identity, known, crc in file.weights)
        names = {crcs[identity][0] for identity, _, _ in file.weights}
        assert {name for name, _ in crcs.values()} - names <= {"token_embd.weight"}
        rows = [t for t in reader.tensors if t.name == "token_embd.weight"][0].data
        assert file.rows[1] == context_file.crc32c(b"".join(rows[i].tobytes() for i in ids[256:]))
        tables.append((file.weights, file.rows))
    assert all(table == tables[0] for table in tables)


def test_other_models(folder, llama):
    """F1: one weight changed under the same name and time, or another setting: named, exit code 1, no token printed."""
    ids = ids_of(40)
    path = saved(llama, folder, ids, "mine.kv")
    text = [*("--context", path), "--raw", "-n", 1, "x", "--json"]
    os.makedirs(folder / "twin", exist_ok=True)

    def refused(words, *flags, **change):
        twin = tiny_model.write(folder / "twin" / "one.gguf", **{"kind": "Q8_0", **change})
        os.utime(twin, ns=(os.stat(llama).st_mtime_ns,) * 2)
        done = weir("run", twin, *text, *flags, expect=1)
        error = done.json["error"]
        assert error["code"] == "WEIR_E_MISMATCH" and "mine.kv" in error["message"], done.show()
        assert all(word in error["message"] for word in words), error
        return twin

    def one_value(tensor, row=3):
        def change(name, x):
            if name == tensor:
                x[(row, 5) if x.ndim == 2 else 5] += 1
            return x
        return change

    for tensor in ("blk.0.attn_q.weight", "blk.1.ffn_down.weight", "output.weight", "blk.1.attn_norm.weight", "output_norm.weight"):
        refused([tensor], change=one_value(tensor))
        refused([tensor], *("--pin", 0), change=one_value(tensor))
    refused(["token_embd.weight"], change=one_value("token_embd.weight", ids[7]))
    refused(["token_embd.weight"], "--pin", 0, change=one_value("token_embd.weight", ids[39]))
    refused(["RoPE"], keys=lambda keys: keys["llama.rope.freq_base"].__setattr__("value", 500.0))
    refused(["tokenizer"], keys=lambda keys: keys["tokenizer.ggml.eos_token_id"].__setattr__("value", 1))
    refused(["type"], kind="Q4_0")
    refused(["trained"], context=4096)
    refused(["architecture"], arch="qwen2")
    refused(["--kv"], "--kv", "q8_0")
    refused(["--precise"], "--precise")
    # A row of the embedding that no token of the context has: keys and values are the same, and so is what follows.
    unused = next(i for i in range(1, N_VOCAB) if i not in ids and i != ord("x"))
    twin = tiny_model.write(folder / "twin" / "one.gguf", "Q8_0", change=one_value("token_embd.weight", unused))
    warm = weir_json("run", twin, *text[:-1])
    cold = weir_json("run", llama, *text[:-1])
    assert warm["ids"] == cold["ids"] and warm["n_cached"] == 40


def test_other_weights_are_not_forgotten(folder, llama):
    """A saved context of other weights, which show only with the first pass, was copied to a new file before: that file is refused as well. It is its owner's
    alone, and a file that replaces another one is read by whom that was."""
    def change(name, x):
        if name == "blk.1.ffn_down.weight":
            x[3, 5] += 1
        return x

    first = saved(llama, folder, ids_of(300), "first.kv")
    assert os.stat(first).st_mode & 0o777 == 0o600
    copy = folder / "copy.kv"
    copy.unlink(missing_ok=True)
    twin = tiny_model.write(folder / "twin_of_weights.gguf", "Q8_0", change=change)
    (folder / "ids.json").write_text("[5, 6, 7]")
    flags = ["--ids", folder / "ids.json", "-c", 2048, "--pin", 0, "--json"]
    error = weir("eval", twin, *flags, "--context", first, "--save-context", copy, expect=1).json["error"]
    assert error["code"] == "WEIR_E_MISMATCH" and "ffn_down" in error["message"]
    if copy.exists():
        error = weir("eval", twin, *flags, "--context", copy, expect=1).json["error"]
        assert error["code"] == "WEIR_E_MISMATCH" and "ffn_down" in error["message"]
    os.chmod(first, 0o640)
    weir("eval", llama, *flags, "--save-context", first, expect=0)
    assert os.stat(first).st_mode & 0o777 == 0o640 and context_file.ContextFile(first).ids == [5, 6, 7]
    early = weir("eval", llama, "--ids", folder / "ids.json", "-c", 2, "--context", first, "--json", expect=1).json["error"]
    assert early["code"] == "WEIR_E_CONTEXT"


@pytest.mark.parametrize("where", ("memory", "disk"))
def test_another_model_does_not_change_it(folder, llama, where):
    """The library, in place, with a model whose weights differ in what is read last: an error, and the file is what it was to the byte, however little or much
    of its tokens was asked for; the model that it is of goes on with it."""
    ids = ids_of(1500)
    path = saved(llama, folder, ids[:600], "kept.kv")
    before = path.read_bytes()
    options = ["pin=0", "ctx=2048", f"context={path}", f"save-context={path}"]
    if where == "disk":
        flags = ("-c", 2048, "--pin", 0, "--chunk", 512, "--kv-dir", folder)
        options += ["chunk=512", f"kv-dir={folder}", f"memory={weir_json('plan', llama, *flags)['min_budget'] + (8 << 20)}"]

    def resume(model, n, ends=0):
        np.array(ids[:n], "<i4").tofile(folder / "ids")
        np.array([9], "<i4").tofile(folder / "queries")
        done = subprocess.run([WEIR.parent / "tests" / "resume", model, folder / "ids", folder / "queries", *options], capture_output=True, text=True, check=False)
        assert done.returncode == ends, done.stderr
        return done

    for tensor in ("blk.1.ffn_down.weight", "output.weight"):
        twin = tiny_model.write(folder / "late_twin.gguf", "Q8_0", change=lambda name, x: x + 1 if name == tensor else x)
        for n in (2, 300, 511, 600, 700, 1500):
            assert tensor in resume(twin, n, ends=1).stderr
            assert path.read_bytes() == before, (tensor, n)
    cold = tiny_model.write(folder / "cold.gguf", "Q8_0")
    for n in (511, 1500):
        resumed = resume(cold, n).stdout.split()[:2]
        fresh = subprocess.run([WEIR.parent / "tests" / "resume", cold, folder / "ids", folder / "queries", "ctx=2048"], capture_output=True, text=True, check=True)
        assert resumed == fresh.stdout.split()[:2]
        file = context_file.ContextFile(path)
        file.check()
        assert file.ids == (ids[:n] + [9])[:len(file.ids)] and len(file.ids) >= n // 256 * 256


def test_one_file_under_two_names(folder, llama):
    """The file that is read and the one that is written are one, however they are spelled: it grows in place, once, under all of its names."""
    own = folder / "names"
    (own / "sub").mkdir(parents=True)
    for where in ([], least(llama)):
        path = saved(llama, own, ids_of(300), "one.kv")
        for name in ("symbolic.kv", "hard.kv"):
            (own / name).unlink(missing_ok=True)
        (own / "symbolic.kv").symlink_to("one.kv")
        os.link(path, own / "hard.kv")
        number, n = path.stat().st_ino, 300
        for first, second in (("one.kv", "./one.kv"), ("sub/../one.kv", "one.kv"), ("one.kv", "symbolic.kv"), ("symbolic.kv", "one.kv"), ("one.kv", "hard.kv"), ("hard.kv", "symbolic.kv")):
            ids = write_ids(own, ids_of(700)[n:n + 50])
            weir("eval", llama, "--ids", ids, "-c", 2048, *where, "--context", first, "--save-context", second, cwd=own, expect=0)
            n += 50
            file = context_file.ContextFile(path)
            file.check()
            assert file.ids == ids_of(700)[:n] and path.stat().st_ino == number and (own / "symbolic.kv").is_symlink()
            assert set(os.listdir(own)) == {"one.kv", "symbolic.kv", "hard.kv", "sub", "ids.json"}


def test_eval_chooses_its_context(folder, llama):
    """Without -c the plan is made twice, and the file that it holds for writing is its own."""
    path = saved(llama, folder, ids_of(200), "chosen.kv", "--kv", "q8_0")
    (folder / "ids.json").write_text(json.dumps(ids_of(4200, 3)))
    done = weir("eval", llama, "--ids", folder / "ids.json", "--context", path, "--save-context", path, "--kv", "q8_0", "--json", expect=0).json
    assert done["n_cached"] == 200 and context_file.ContextFile(path).ids == ids_of(200) + ids_of(4200, 3)


def test_run_saves_prompt_and_answer(folder, llama):
    """F3: what was saved is the prompt and the whole answer, the last token too; the next run evaluates its own tokens alone and gives what one run of all
    tokens gives. The first token of the model is put before the first text alone."""
    path = folder / "run.kv"
    path.unlink(missing_ok=True)
    first = weir_json("run", llama, "--raw", "once upon a time " * 30, "-n", 20, "--temp", 0, "--ignore-eos", "--save-context", path)
    everything = first["prompt_ids"] + first["ids"]
    assert first["n_saved"] == len(everything) and context_file.ContextFile(path).ids == everything
    second = weir_json("run", llama, "--raw", "and then", "-n", 12, "--temp", 0, "--ignore-eos", "--context", path)
    assert second["prompt_ids"][:len(everything)] == everything
    new = len(second["prompt_ids"]) - len(everything)
    assert second["n_cached"] == len(everything) and second["n_evaluated"] == new + 11 and second["io"]["bytes_written"] == 0
    (folder / "ids.json").write_text(json.dumps(second["prompt_ids"] + second["ids"]))
    weir("eval", llama, "--ids", folder / "ids.json", "--logits", folder / "all.npy", expect=0)
    best = np.load(folder / "all.npy").argmax(axis=1).tolist()
    assert best[len(second["prompt_ids"]) - 1:-1] == second["ids"]
    tight = weir("run", llama, "--raw", "and then", "-n", 4, "--context", path, "-c", len(everything) + 1, expect=1)
    assert "--context" in tight.err and "-c" in tight.err
    weir("run", llama, "--raw", "x", "--save-context", folder / "nowhere" / "x.kv", expect=5)
    assert "no saved context" in weir("run", llama, "--raw", "x", "-n", 1, "--save-context", llama, expect=5).err


def test_inspect(folder, llama):
    path = saved(llama, folder, ids_of(300), "look.kv")
    about = weir_json("inspect", path, "--check")
    assert about["tokens"] == 300 and about["arch"] == "llama" and about["kv"] == "f16" and about["model"] == "one.gguf" and about["checked"] is True
    assert about["file_bytes"] == path.stat().st_size and about["weights"] == about["weights_known"]
    assert b"300 tokens" in weir("inspect", path, expect=0).out
    data = bytearray(path.read_bytes())
    file = context_file.ContextFile(path)
    data[file.group_at(0) + file.about["block_bytes"] + 5] ^= 4
    path.write_bytes(data)
    weir("inspect", path, expect=0)
    assert "layer 1" in weir("inspect", path, "--check", expect=1).err


def test_damaged(folder, llama):
    """F4: flips and cuts through the command: refused and named in at most 2 s, or the answer of the whole file."""
    good = saved(llama, folder, ids_of(300), "good.kv")
    bad = folder / "bad.kv"
    command = ["run", llama, "--raw", "x", "-n", 3, "--temp", 0, "-c", 1024]
    answer = weir(*command, "--context", good, expect=0).out
    data = good.read_bytes()
    file = context_file.ContextFile(good)
    places = random.Random(3).sample(range(0, len(data), 97), 40) + [9, 4096 + 17, 8192 + 9, file.group_at(0), file.group_at(1) + 2 * file.about["block_bytes"] + 40]
    for at in places:
        bad.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1:])
        begin = time.monotonic()
        done = weir(*command, "--context", bad)
        assert time.monotonic() - begin < 10
        if done.code == 0:
            assert done.out == answer, at
        else:
            assert done.code in (1, 4) and "bad.kv" in done.err and not done.out, done.show()
    for i in range(20):
        bad.write_bytes(data[:len(data) * i // 20])
        done = weir(*command, "--context", bad, expect=1)
        assert "bad.kv" in done.err and not done.out, done.show()
    for kind in (b"", b"once upon a time, there was no saved context here at all"):
        bad.write_bytes(kind)
        assert "no saved context" in weir(*command, "--context", bad, expect=1).err
    weir(*command, "--context", folder / "absent.kv", expect=5)


def start(*arguments):
    return subprocess.Popen([str(WEIR), *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())


def test_killed(folder, tiny):
    """kill -9 at random moments of runs that save and extend: the file opens and holds a prefix of the tokens, each step at least what the one before left;
    nothing else lies in its folder."""
    own = folder / "killed"
    own.mkdir()
    path, ids = own / "killed.kv", np.random.default_rng(5).integers(1, 2000, 60000).tolist()
    draw, held, grown = random.Random(1), 0, 0
    for _ in range(200 if os.environ.get("WEIR_TEST_KILLS") else 25):
        if held > 30000:
            path.unlink()
            held = 0
        (folder / "ids.json").write_text(json.dumps(ids[held:held + 6000]))
        context = ["--context", path] if held else []
        process = start("eval", tiny, "--ids", folder / "ids.json", "-c", 65536, "--chunk", 128, *context, "--save-context", path)
        time.sleep(draw.uniform(0.02, 1.0))
        process.kill()
        process.communicate()
        assert set(os.listdir(own)) <= {"killed.kv"}
        if not path.exists():
            assert held == 0
            continue
        n = weir_json("inspect", path, "--check")["tokens"]
        assert n >= held
        assert context_file.ContextFile(path).ids == ids[:n]
        grown += n > held
        held = n
    assert grown > 5


def test_interrupted(folder, tiny):
    """Ctrl-C keeps what is done, in a file that is new, and in place of one that was there."""
    path = folder / "interrupted.kv"
    ids = np.random.default_rng(6).integers(1, 2000, 60000).tolist()
    (folder / "ids.json").write_text(json.dumps(ids))
    (folder / "text.txt").write_text("word " * 20000)
    for _ in range(2):
        before = path.stat().st_ino if path.exists() else None
        process = start("run", tiny, "--raw", "-f", folder / "text.txt", "-c", 131072, "--chunk", 128, "-n", 1, "--save-context", path)
        time.sleep(2.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert path.stat().st_ino != before
        file = context_file.ContextFile(path)
        file.check()
        assert len(file.ids) >= 128 and len(file.ids) % 128 == 0


def limited(limit, *arguments):
    return weir(*arguments, before=["prlimit", f"--fsize={limit}"])


def test_file_size_limit(folder, llama):
    """F2: no write beyond the limit: an error that names the file, the old file as it was, no new one that does not open."""
    own = folder / "limit"
    own.mkdir()
    old = saved(llama, own, ids_of(300), "old.kv")
    data = old.read_bytes()
    (own / "ids.json").write_text(json.dumps(ids_of(1500)))
    for limit in (0, 4096, 100000, 300000, 500000, 700000, 900000):
        done = limited(limit, "eval", llama, "--ids", own / "ids.json", "-c", 2048, "--save-context", old)
        assert done.code == 5 and "old.kv" in done.err, done.show()
        assert old.read_bytes() == data and set(os.listdir(own)) == {"old.kv", "ids.json"}
        done = limited(limit, "eval", llama, "--ids", own / "ids.json", "-c", 2048, "--save-context", own / "new.kv")
        assert done.code == 5 and "new.kv" in done.err, done.show()
        if (own / "new.kv").exists():
            file = context_file.ContextFile(own / "new.kv")
            file.check()
            assert file.ids == ids_of(1500)[:len(file.ids)] and len(file.ids) > 0
            (own / "new.kv").unlink()
        done = limited(limit, "eval", llama, "--ids", own / "ids.json", "-c", 2048, "--context", old, "--save-context", old)
        assert done.code == 5 and "old.kv" in done.err, done.show()
        file = context_file.ContextFile(old)
        file.check()
        assert file.ids[:300] == ids_of(300)
        old.write_bytes(data)
    run_ids(llama, own, ids_of(1500), "--save-context", old, logits=False)
    assert context_file.ContextFile(old).ids == ids_of(1500)


def test_full_disk(folder, llama):
    """F2 on a disk that is full: a file system of 1.25 MiB."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("mounting a small file system takes root and mkfs.ext4")
    image, disk = folder / "disk.img", folder / "disk"
    disk.mkdir()
    with open(image, "wb") as file:
        file.truncate(1280 << 10)
    subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", str(image)], check=True)
    if subprocess.run(["mount", "-o", "loop", str(image), str(disk)], check=False, capture_output=True).returncode != 0:
        pytest.skip("no loop devices here")
    try:
        shutil.rmtree(disk / "lost+found", ignore_errors=True)
        old = saved(llama, disk, ids_of(300), "old.kv")
        data = old.read_bytes()
        (folder / "ids.json").write_text(json.dumps(ids_of(2000)))
        done = weir("eval", llama, "--ids", folder / "ids.json", "-c", 2048, "--save-context", old, expect=5)
        assert "free" in done.err and old.read_bytes() == data and set(os.listdir(disk)) <= {"old.kv", "ids.json"}, done.show()
        done = weir("eval", llama, "--ids", folder / "ids.json", "-c", 2048, "--save-context", disk / "new.kv", expect=5)
        assert "new.kv" in done.err, done.show()
        if (disk / "new.kv").exists():
            context_file.ContextFile(disk / "new.kv").check()
            (disk / "new.kv").unlink()
        weir("eval", llama, "--ids", disk / "ids.json", "-c", 2048, "--context", old, "--save-context", old, expect=0)  # there is room for a little
        assert len(context_file.ContextFile(old).ids) == 600
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_bytes_written(folder, llama):
    """Full groups are written once: in steps of 64 tokens no more than the keys and values, a record a group, and a tail for each save."""
    path = folder / "written.kv"
    done = weir_measured("eval", llama, "--ids", write_ids(folder, ids_of(1792)), "-c", 2048, "--chunk", 64, "--save-context", path, expect=0)
    file = context_file.ContextFile(path)
    assert done.usage["write_chars"] <= file.start + 7 * (file.group_bytes + 4096) + 65536
    more = weir_measured("eval", llama, "--ids", write_ids(folder, ids_of(100)), "-c", 2048, "--context", path, "--save-context", path, expect=0)
    assert more.usage["write_chars"] <= file.group_bytes + 65536


def write_ids(folder, ids):
    (folder / "ids.json").write_text(json.dumps(ids))
    return folder / "ids.json"


TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"


def talk(terminal, words, lines):  # noqa: F811
    one = terminal(*words)
    one.expect_prompt()
    for line, word in lines:
        one.type(line.encode() + b"\r")
        if word:
            one.expect(word.encode())
        one.expect_prompt()
    one.type(b"/bye\r")
    assert one.end() == 0
    return one


def test_chat(folder, terminal):
    """/save and /load: the conversation goes on in another process without being evaluated again, and what it says is what one process says."""
    model = tiny_model.write(folder / "chat.gguf", "Q8_0", template=TEMPLATE)
    path = folder / "chat.kv"
    flags = ["--temp", 0, "-n", 12, "--ignore-eos"]
    how = ["chat", model, *flags]
    talk(terminal, how, [(f"tell me a story {'x ' * 40}", ""), (f"/save {path}", "are saved")])
    file = context_file.ContextFile(path)
    file.check()
    words = "".join(tiny_model.tokens()[i] for i in file.ids)
    assert words.startswith("[user]tell") and words.endswith("Ċ") and "[assistant]" in words
    other = tiny_model.write(folder / "chat_twin.gguf", "Q8_0", template=TEMPLATE, change=lambda name, x: x + 1 if name == "blk.1.ffn_down.weight" else x)
    mine = folder / "mine.kv"
    talk(terminal, ["chat", other, *flags], [("hello", ""), (f"/load {path}", "ffn_down"), (f"/save {mine}", "are saved")])  # the conversation is still there
    assert "".join(tiny_model.tokens()[i] for i in context_file.ContextFile(mine).ids).startswith("[user]hello")
    talk(terminal, how, [(f"/load {path}", f"{len(file.ids)} tokens from"), ("and then?", ""), (f"/load {folder / 'absent.kv'}", "cannot open"), ("/save", "name the file"),
          (f"/save {folder / 'on.kv'}", "are saved")])
    on = context_file.ContextFile(folder / "on.kv")
    assert on.ids[:len(file.ids)] == file.ids
    cold = weir_json("run", model, *flags, "--raw", "[user]and then?\n[assistant]", "--context", path)
    assert on.ids[:len(cold["prompt_ids"])] == cold["prompt_ids"] and cold["n_cached"] == len(file.ids)


def test_a_number_is_no_file(llama):
    done = weir("run", llama, "x", "--context", "4096")
    assert done.code == 2 and "the size of the context is -c 4096" in done.err
