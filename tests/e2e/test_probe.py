# SPDX-License-Identifier: Apache-2.0
"""weir probe: what it reports is possible and adds up, it leaves nothing behind however it ends, and plans find its profile."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from command import WEIR, environment, weir, weir_json, weir_measured

SHORT = ("--seconds", 1)
MIB = 1 << 20


def profiles(cache):
    return sorted((cache / "weir" / "profiles").iterdir()) if (cache / "weir" / "profiles").exists() else []


def is_in_memory(folder):
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(folder)], capture_output=True, text=True, check=True).stdout.strip()
    return kind in ("tmpfs", "ramfs")


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    """One short probe for all that only look at its results: (folder, cache, result, object)."""
    folder, cache = tmp_path_factory.mktemp("disk"), tmp_path_factory.mktemp("cache")
    if is_in_memory(folder):
        pytest.skip(f"{folder} is in memory, which is no disk")
    done = weir_measured("probe", folder, *SHORT, "--json", "-o", folder / "disk.svg", env={"XDG_CACHE_HOME": cache}, expect=0)
    return folder, cache, done, done.json


def formats_of_build():
    text = weir("version", expect=0).out.decode()
    return set(re.findall(r"\b(?:B?F\d+|T?Q\d_\w+)\b", text))


def test_rates_are_possible(probe):
    _, _, _, about = probe
    assert about["cpus"] == len(os.sched_getaffinity(0)) or about["cpus"] < len(os.sched_getaffinity(0))  # fewer: a quota
    threads = [row["threads"] for row in about["memory"]["rate"]]
    assert threads[0] == 1 and threads[-1] == about["cpus"] and threads == sorted(set(threads)) and len(threads) <= 8
    assert [row["threads"] for row in about["compute"]["threads"]] == threads
    for row in about["memory"]["rate"]:
        assert 1e6 < row["rate"] < 2e12
    sets = {(row["threads"], row["bytes"]): row["rate"] for row in about["memory"]["sets"]}
    sizes = sorted({size for _, size in sets})
    assert len(sets) == len(threads) * len(sizes) and sizes[0] == 64 * MIB and sizes[1] == 128 * MIB and all(1e6 < rate < 1e13 for rate in sets.values())
    assert 1e5 < about["compute"]["activate"] < 1e12
    for row in about["compute"]["threads"]:
        assert 0 < row["stage_seconds"] < 10 and 0 < row["stage_cached_seconds"] < 10 and 0.05 < row["in_pass"] < 20
        for name in ("f32", "int8", "int16", "attention", "attention_many"):
            assert row[name] is None and about["isa"] == "scalar" or 1e5 < row[name] < 1e16, (name, row)
    assert {row["format"] for row in about["compute"]["formats"]} == formats_of_build()
    seen = set()
    for row in about["compute"]["formats"]:
        float_type = row["format"] in ("F32", "F16", "BF16")
        assert row["activations"] in (("f32",) if float_type else ("int8", "int16"))
        assert 1e5 < row["decode"] < 2e12 and 1e5 < row["decode_short"] < 2e12 and 1e6 < row["prefill"] < 1e16
        assert row["decode_ratio"] == pytest.approx(row["decode"] / row["decode_ceiling"])
        if row["prefill_ceiling"] is not None:
            assert row["prefill_ratio"] == pytest.approx(row["prefill"] / row["prefill_ceiling"])
        seen.add((row["format"], row["activations"], row["threads"]))
    assert len(seen) == len(about["compute"]["formats"]) == len(threads) * (2 * len(formats_of_build()) - 3)


def test_surface(probe):
    _, _, _, about = probe
    disk = about["disk"]
    rates = {(row["engine"], row["direct"], row["bytes"], row["depth"]): row["rate"] for row in disk["surface"]}
    assert len(rates) == len(disk["surface"])
    assert list(rates) == sorted(rates, key=lambda key: (not key[1], key[2], key[3]))
    if not any("left out" in line for line in about["warnings"]):  # the disk is slow or busy
        for engine in {engine for engine, *_ in rates}:
            points = {(size, depth) for e, direct, size, depth in rates if e == engine and direct == disk["direct"]}
            assert points >= {(size, depth) for size in (65536, 262144, 524288, MIB, 2 * MIB, 4 * MIB) for depth in (1, 4, 8, 16)}
    assert ("pread", disk["direct"], MIB, 8) in rates
    engine = "uring" if any(engine == "uring" for engine, *_ in rates) else "pread"
    assert disk["rate"] == pytest.approx(rates[engine, disk["direct"], MIB, 8], rel=1e-6)
    assert disk["ceiling"] == max(rates.values()) and disk["ratio"] == pytest.approx(disk["rate"] / disk["ceiling"])
    assert all(1e4 < rate < 1e12 for rate in rates.values())
    assert 0 < about["steady"] <= 1
    assert disk["first"] is None or disk["rate"] < disk["first"] < 1e12
    together = [(point["reading_over_computing"], point["longer"]) for point in about["passes"]["together"]]
    assert 1 <= len(together) <= 4 and together == sorted(together) and all(0 < ratio < 1000 and 0 <= more < 100 for ratio, more in together)


def test_counts_what_it_reads(probe):
    """To 1 % the bytes that the system counts; beside them are the command's own code, and a page a measurement to see whether direct reads work."""
    _, _, done, about = probe
    if not about["disk"]["direct"]:
        pytest.skip("read-ahead of buffered reads is counted too")
    assert done.usage["read_bytes"] == pytest.approx(about["disk"]["bytes_read"], rel=0.01, abs=32 * MIB)
    assert about["disk"]["bytes_written"] >= about["disk"]["file_bytes"] >= 256 * MIB
    assert done.usage["write_bytes"] == pytest.approx(about["disk"]["bytes_written"], rel=0.01, abs=4 * MIB)


def test_memory_is_bounded(probe):
    _, _, done, _ = probe
    assert done.usage["max_rss"] < 1050 * MIB


def test_leaves_the_profile_and_the_picture(probe):
    folder, cache, _, about = probe
    assert [path.name for path in folder.iterdir()] == ["disk.svg"]
    assert [str(path) for path in profiles(cache)] == [about["profile"]]
    text = pathlib.Path(about["profile"]).read_text(encoding="ascii")
    assert text.startswith("weir-profile 3\n") and f"cpu {about['cpu']}\n" in text and f"cpus {about['cpus']}\n" in text
    svg = (folder / "disk.svg").read_text(encoding="utf-8")
    assert svg.startswith("<svg") and svg.rstrip().endswith("</svg>") and "MB/s" in svg and "8 in flight" in svg
    for row in about["disk"]["surface"]:  # what is stored is what is printed
        direct = "direct" if row["direct"] else "buffered"
        assert re.search(rf"^disk {row['engine']} {direct} {row['bytes']} {row['depth']} {row['rate']:.0f}$", text, re.M)


def test_plans_find_it(probe, tmp_path):
    """A model on the measured file system is predicted from it, with another cache it is not."""
    folder, cache, _, _ = probe
    model = folder.parent / "tiny.gguf"
    weir("synth", "tiny", "-o", model, expect=0)
    with_profile = weir_json("plan", model, env={"XDG_CACHE_HOME": cache})["rates"]
    without = weir_json("plan", model, env={"XDG_CACHE_HOME": tmp_path})["rates"]
    assert with_profile["decode_predicted"] > 0 and with_profile["prefill_predicted"] > 0
    assert without["decode_predicted"] is None and without["prefill_predicted"] is None


def test_table_without_store(tmp_path):
    """Every rate beside its ceiling. Without a cache folder there is no place for the profile: that is said, and all is measured and printed."""
    if is_in_memory(tmp_path):
        pytest.skip(f"{tmp_path} is in memory, which is no disk")
    file = tmp_path / "file"
    file.write_bytes(b"")
    done = weir("probe", tmp_path, *SHORT, env={"XDG_CACHE_HOME": file}, expect=0)
    text = done.out.decode()
    assert "the profile is not stored" in done.err and "not stored" in text and "ceiling" in text and "ratio" in text
    assert re.search(r"Q4_0 +int16 +\d+ +[\d.]+ +[\d.]+ +\d+\.\d\d +[\d.]+ +[\d.-]+ +\d+\.\d\d\n", text)


def test_better_profile_is_kept(probe, tmp_path):
    """One of more seconds gives way only to as many, unless it is of a busy machine and the new one is not; a damaged one to any."""
    folder, _, _, about = probe
    stored = tmp_path / "weir" / "profiles" / pathlib.Path(about["profile"]).name
    stored.parent.mkdir(parents=True)
    text = pathlib.Path(about["profile"]).read_text(encoding="ascii")
    assert "\nseconds 1\n" in text
    longer = re.sub(r"\n(steady_thousandths|decode|prefill|attend) .*", "", text.replace("\nseconds 1\n", "\nseconds 2\n"))  # nothing above its ceiling
    for before, when in ((f"{longer}steady_thousandths 1000\n", "always"), (f"{longer}steady_thousandths 100\n", "as busy"), (longer[:-40], "never")):
        stored.write_text(before, encoding="ascii")
        again = weir_json("probe", folder, *SHORT, env={"XDG_CACHE_HOME": tmp_path})
        is_kept = when == "always" or when == "as busy" and again["steady"] < 0.8
        kept = [line for line in again["warnings"] if "is kept" in line]
        assert (stored.read_text(encoding="ascii") == before) == is_kept and again["profile"] == (None if is_kept else str(stored))
        assert len(kept) == is_kept and all("--seconds" in line and str(stored.parent.parent) in line for line in kept)


def test_busy_machine(tmp_path):
    """Beside others that compute a profile is noisy: that is said, and it does not take the place of one of a quiet machine."""
    if is_in_memory(tmp_path):
        pytest.skip(f"{tmp_path} is in memory, which is no disk")
    cache = {"XDG_CACHE_HOME": tmp_path / "cache"}
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 * len(os.sched_getaffinity(0)))]
    try:
        first = weir_json("probe", tmp_path, "--seconds", 10, env=cache)
        stored = pathlib.Path(first["profile"])
        rest = re.sub(r"\n(steady_thousandths|decode|prefill|attend) .*", "", stored.read_text(encoding="ascii"))  # nothing above its ceiling
        quiet = f"{rest}steady_thousandths 1000\n"
        stored.write_text(quiet, encoding="ascii")
        second = weir_json("probe", tmp_path, "--seconds", 10, env=cache)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert first["steady"] < 0.8 and any("machine was busy" in line for line in first["warnings"])
    assert second["profile"] is None and any("is kept" in line and "quiet" in line for line in second["warnings"])
    assert stored.read_text(encoding="ascii") == quiet


def test_progress_is_steady(tmp_path):
    """In a log: seconds of all seconds, which never go back, whatever is being measured."""
    if is_in_memory(tmp_path):
        pytest.skip(f"{tmp_path} is in memory, which is no disk")
    done = weir("probe", tmp_path, "--seconds", 13, "-v", env={"XDG_CACHE_HOME": tmp_path / "cache"}, expect=0)
    shown = re.findall(r"^weir: (write|disk|passes|memory and compute) (\d+) of (\d+) seconds(?:, reading \d+ MB/s)?$", done.err, re.M)
    assert shown and {total for _, _, total in shown} == {"13"} and [int(at) for _, at, _ in shown] == sorted(int(at) for _, at, _ in shown)


def test_few_descriptors(tmp_path):
    """Whatever cannot be opened is named with a remedy that the command has."""
    if is_in_memory(tmp_path):
        pytest.skip(f"{tmp_path} is in memory, which is no disk")
    failed = 0
    for n in range(4, 16):
        done = weir("probe", tmp_path, *SHORT, before=("prlimit", f"--nofile={n}"), env={"XDG_CACHE_HOME": tmp_path / "cache"})
        failed += done.code != 0
        assert "--io" not in done.err and "--memory" not in done.err, done.show()
        if done.code == 0:
            break
    assert failed > 0 and done.code == 0, done.show()


@pytest.mark.parametrize("seconds", (0.2, 4))
@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGKILL))
def test_interrupt_leaves_nothing(tmp_path, seconds, number):
    """While the file is written, and while it is read. Even killed at once it leaves no file, for the file never had a name for long."""
    folder, cache = tmp_path / "disk", tmp_path / "cache"
    folder.mkdir()
    words = [str(WEIR), "probe", str(folder), "-o", str(folder / "disk.svg")]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(XDG_CACHE_HOME=cache))
    time.sleep(seconds)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), err
    assert out == b"" and list(folder.iterdir()) == [] and profiles(cache) == []
    assert number == signal.SIGKILL or err == b"weir: error: interrupted\n"


def refused(*arguments, code, said, **how):
    done = weir("probe", *SHORT, *arguments, expect=code, timeout=20, **how)
    assert done.out == b"" and done.err.count("\n") == 1 and said in done.err, done.show()


def test_refusals(tmp_path):
    cache = {"XDG_CACHE_HOME": tmp_path / "cache"}
    file = tmp_path / "file"
    file.write_bytes(b"")
    refused(tmp_path / "missing", code=5, said="name a folder that is there", env=cache)
    refused(file, code=5, said="is no folder", env=cache)
    refused(tmp_path, "more", code=2, said="more", env=cache)
    refused(tmp_path, "--seconds", "0", code=2, said="--seconds", env=cache)
    refused(tmp_path, "-o", tmp_path / "missing" / "a.svg", code=5, said="missing/a.svg", env=cache)
    if os.geteuid() != 0:
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        refused(locked, code=5, said="no file can be written there", env=cache)
    if is_in_memory("/dev/shm"):
        refused("/dev/shm", code=5, said="is in memory (tmpfs), which is no disk", env=cache)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["file"] and profiles(tmp_path / "cache") == []


def test_file_limit(tmp_path):
    """As on a disk whose quota is used up: refused with the need, before anything is written."""
    if is_in_memory(tmp_path):
        pytest.skip(f"{tmp_path} is in memory, where no file is written")
    refused(tmp_path, code=5, said="bytes are needed", before=("prlimit", "--fsize=1000000"), env={"XDG_CACHE_HOME": tmp_path / "cache"})
    assert list(tmp_path.iterdir()) == []


def test_full_disk(tmp_path):
    if not shutil.which("mkfs.ext4") or os.geteuid() != 0:
        pytest.skip("needs root and mkfs.ext4")
    image, place = tmp_path / "image", tmp_path / "place"
    place.mkdir()
    with image.open("wb") as f:
        f.truncate(100 * MIB)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        before = set(place.iterdir())
        refused(place, code=5, said="bytes are free", env={"XDG_CACHE_HOME": tmp_path / "cache"})
        assert set(place.iterdir()) == before
    finally:
        subprocess.run(["umount", place], check=True)


def test_damaged_profile(probe, tmp_path):
    """A plan says so in one line and goes on without rates."""
    _, _, _, about = probe
    folder = tmp_path / "weir" / "profiles"
    folder.mkdir(parents=True)
    stored = pathlib.Path(about["profile"])
    (folder / stored.name).write_bytes(stored.read_bytes()[:500])
    model = stored.parents[2].parent / "tiny.gguf"
    weir("synth", "tiny", "-o", model, expect=0)
    done = weir("plan", model, "--json", env={"XDG_CACHE_HOME": tmp_path}, expect=0)
    assert done.json["rates"]["decode_predicted"] is None
    assert done.err.count("\n") == 1 and "weir probe" in done.err and "line" in done.err
