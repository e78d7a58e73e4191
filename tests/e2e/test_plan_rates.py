# SPDX-License-Identifier: Apache-2.0
"""weir plan with a stored profile: predicted rates against sums worked out here, sweeps and their charts, advice; and without one."""
import math
import re
import xml.etree.ElementTree as xml

import pytest

from command import weir, weir_json
from profile_file import ACTIVATE, ATTEND, DECODE, DISK, IN_PASS, READ, STAGE, TOGETHER, Profile

MIB = 1 << 20
SVG = "{http://www.w3.org/2000/svg}"


def together(read, compute):
    """Seconds of a pass: between the measured ratios by their logarithm, as the last one beyond, in proportion to the reading below."""
    ratio = read / compute
    (least, lost), (most, at_most) = TOGETHER[0], TOGETHER[-1]
    if ratio < least:
        more = lost * ratio / least
    elif ratio >= most:
        more = at_most
    else:
        (a, lost_a), (b, lost_b) = next(pair for pair in zip(TOGETHER, TOGETHER[1:]) if ratio < pair[1][0])
        more = lost_a + (lost_b - lost_a) * math.log(ratio / a) / math.log(b / a)
    return max(read, compute) * (1 + more)


@pytest.fixture
def profile(dense, tmp_path):
    return Profile(dense.path, tmp_path / "cache")


@pytest.mark.parametrize("more", [0, 80 * MIB, 1 << 30])
def test_decode(dense, profile, more):
    env = profile.store()
    flags = ("-c", 256, "-t", 1)
    plan = weir_json("plan", dense.path, *flags, "--memory", dense.min_budget(*flags) + more, env=env)
    model = weir_json("inspect", dense.path)
    layers, embd = model["metadata"]["llama.block_count"], model["metadata"]["llama.embedding_length"]
    weights = sum(t["bytes"] for t in model["tensors"] if len(t["shape"]) == 2 and t["name"] != "token_embd.weight")
    position = plan["kv"]["bytes_per_position"]
    heads, heads_kv, dim = (model["metadata"][f"llama.attention.{key}"] for key in ("head_count", "head_count_kv", "key_length"))
    queries = heads // heads_kv
    elements = layers * (4 * embd + 2 * heads * dim + heads_kv * dim + 2 * model["metadata"]["llama.feed_forward_length"])

    def compute(keys):
        arithmetic = 4 * embd * keys * layers * (queries - 1) / queries / 1e12
        stages = (5 * layers + 1) * STAGE + elements / ACTIVATE
        return weights / (IN_PASS * DECODE) + keys * position / ATTEND + arithmetic + stages + plan["io"]["bytes_per_token_rows"] / DISK

    streamed = plan["io"]["bytes_per_token_weights"]
    read = streamed / DISK
    rates = plan["rates"]
    assert rates["decode_predicted"] == pytest.approx(1 / together(read, compute(1)))
    assert rates["decode_predicted_full"] == pytest.approx(1 / together(read, compute(256)))
    assert rates["decode_computing_alone"] == pytest.approx(1 / compute(1))
    assert rates["decode_reading_alone"] == (pytest.approx(1 / read) if read else None)
    assert plan["bound"] == ("disk" if read > compute(1) else "memory")
    assert rates["decode_predicted_first"] is None  # the disk has one rate
    less = read * max(0, 1 - (1 << 30) / streamed) if read else 0
    saved = (together(read, compute(1)) - together(less, compute(1))) * (1 << 30) / min(streamed, 1 << 30) if read else 0
    assert plan["seconds_per_gib"] == pytest.approx(saved)
    assert weights / READ < compute(1) and plan["profile_taken"] == 1790000000


def test_disk_of_two_rates(dense, profile):
    """What it keeps is predicted; what it gives first is said beside it, where something is read."""
    profile.lines.append("disk_first_thousandths 2000")
    env = profile.store()
    flags = ("-c", 256, "-t", 1, "--memory", dense.min_budget("-c", 256, "-t", 1))
    rates = weir_json("plan", dense.path, *flags, env=env)["rates"]
    read, compute = 1 / rates["decode_reading_alone"], 1 / rates["decode_computing_alone"]
    assert rates["decode_predicted"] == pytest.approx(1 / together(read, compute))
    assert rates["decode_predicted_first"] == pytest.approx(1 / together(read / 2, compute))
    (line,) = (line for line in weir("plan", dense.path, *flags, env=env, expect=0).out.decode().splitlines() if line.startswith("at first"))
    assert float(line.split()[2]) == pytest.approx(rates["decode_predicted_first"], rel=0.01)
    whole = ("-c", 256, "-t", 1, "--memory", "2G")
    assert weir_json("plan", dense.path, *whole, env=env)["rates"]["decode_predicted_first"] is None
    assert "at first" not in weir("plan", dense.path, *whole, env=env, expect=0).out.decode()


def test_no_bit_depends_on_it(dense, profile):
    env = profile.store()
    command = ("run", dense.path, "hello", "--raw", "-n", 4, "-c", 256, "-t", 1, "--memory", dense.min_budget("-c", 256, "-t", 1))
    without, having = weir_json(*command, env={"XDG_CACHE_HOME": "/nowhere"}), weir_json(*command, env=env)
    assert without["ids"] == having["ids"] and without["residency"] == having["residency"]
    assert without["rates"]["predicted_from"] == "load" and having["rates"]["predicted_from"] == "profile"
    assert having["rates"]["prefill_predicted"] > 0 and without["rates"]["prefill_predicted"] is None
    stats = weir(*command, "--stats", env=env, expect=0).err
    assert "(profile), ratio" in stats


def test_unknown(dense, profile, tmp_path):
    env = {"XDG_CACHE_HOME": tmp_path}
    plan = weir_json("plan", dense.path, "-c", 256, env=env)
    assert plan["profile_taken"] is None and plan["seconds_per_gib"] is None and set(plan["rates"].values()) == {None} and plan["warnings"] == []
    assert f"weir probe {dense.path.parent}\n" in weir("plan", dense.path, "-c", 256, env=env, expect=0).out.decode()
    assert f"weir probe --cpu scalar {dense.path.parent}\n" in weir("plan", dense.path, "-c", 256, "--cpu", "scalar", env=env, expect=0).out.decode()
    refused = weir("plan", dense.path, "-c", 256, "--sweep", "memory", env=env, expect=1)
    assert "weir probe" in refused.err
    profile.lines = [line for line in profile.lines if not line.startswith("decode Q4_0")]
    plan = weir_json("plan", dense.path, "-c", 256, env=profile.store())
    assert plan["profile_taken"] == 1790000000 and plan["rates"]["decode_predicted"] is None
    profile.lines.append("read 1 nonsense")
    damaged = weir_json("plan", dense.path, "-c", 256, env=profile.store())
    assert damaged["profile_taken"] is None and len(damaged["warnings"]) == 1 and "weir probe" in damaged["warnings"][0]


@pytest.mark.parametrize("over", ["memory", "ctx"])
def test_sweep(dense, profile, tmp_path, over):
    env = profile.store()
    picture = tmp_path / "sweep.svg"
    flags = ("--memory", dense.min_budget("-c", 512) + 8 * MIB, "-c", 512)
    plan = weir_json("plan", dense.path, *flags, "--sweep", over, "-o", picture, env=env)
    points, axis = plan["sweep"]["points"], {"memory": "budget", "ctx": "context"}[over]
    values = [point[axis] for point in points]
    assert plan["sweep"]["over"] == over and len(points) > 4 and values == sorted(set(values))
    if over == "memory":
        assert values[0] == plan["min_budget"] and points[-1]["streamed"] == 0 and {point["context"] for point in points} == {512}
    else:
        assert values[0] == 256 and values[-1] == plan["max_context"] and {point["budget"] for point in points} == {flags[1]}
    for point in (points[0], points[3], points[-1]):
        same = weir_json("plan", dense.path, "--memory", point["budget"], "-c", point["context"], env=env)
        assert point == {"budget": same["memory"]["budget"], "context": same["kv"]["context"], "chunk": same["chunk"], **{k: same["residency"][k] for k in ("pinned", "streamed")},
                         "bytes_per_token": same["io"]["bytes_per_token"], "bound": same["bound"],
                         **{k: same["rates"][k] for k in ("decode_predicted", "decode_predicted_full", "prefill_predicted")}}
    root = xml.parse(picture).getroot()
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert root.tag == f"{SVG}svg" and root.get("width") == "800" and "tokens/s" in words and "with the context full" in words and "this plan" in words
    shown = weir("plan", dense.path, *flags, "--sweep", over, env=env, expect=0).out.decode("ascii")
    assert "o at the beginning" in shown and "this plan" in shown and max(map(len, shown.splitlines()[-25:])) < 80


def test_slow_is_not_0(dense, profile):
    profile.lines = [re.sub(r"^(disk .*) \d+$", r"\1 100000", line) for line in profile.lines]
    (decode,) = (line for line in weir("plan", dense.path, "--memory", dense.bytes // 2, "-c", 512, env=profile.store(), expect=0).out.decode().splitlines() if line.startswith("decode"))
    assert 0 < float(decode.split()[1]) < 0.01, decode


def test_unknown_is_not_drawn(dense, profile):
    """Where all fits the rate is known without the disk's; other budgets have none, which is not 0."""
    profile.lines = [line for line in profile.lines if not line.startswith("disk ")]
    flags = ("--memory", "1G", "-c", 512, "--sweep", "memory")
    points = weir_json("plan", dense.path, *flags, env=profile.store())["sweep"]["points"]
    assert points[0]["decode_predicted"] is None and points[-1]["decode_predicted"] > 0
    shown = weir("plan", dense.path, *flags, env=profile.store(), expect=0).out.decode().splitlines()
    (zero,) = (line for line in shown if line.strip().startswith("0 +"))
    assert not set("ox.") & set(zero), zero
    assert "mmap" in weir("plan", dense.path, "--memory", dense.bytes // 2, "-c", 512, "--sweep", "memory", "--io", "mmap", env=profile.store(), expect=2).err


def test_usage(dense, profile, tmp_path):
    env = profile.store()
    assert "memory or ctx" in weir("plan", dense.path, "--sweep", "budget", env=env, expect=2).err
    assert "--sweep" in weir("plan", dense.path, "-o", tmp_path / "x.svg", env=env, expect=2).err
    weir("plan", dense.path, env={**env, "WEIR_OUT": tmp_path / "x.svg"}, expect=0)  # said to all commands
    assert not (tmp_path / "x.svg").exists()
    assert weir("plan", dense.path, "--sweep", "memory", "-o", dense.path, env=env, expect=5).out == b"" and dense.path.stat().st_size == dense.bytes


def test_advice(dense, profile):
    """The smaller change comes first; what it gives is what the plan of it says. Keys and values stay in memory, so that a context needs it."""
    env = profile.store()
    flags = ("-t", 1, "--kv-disk", 0)
    least, whole = dense.min_budget(*flags, "-c", 256), dense.min_budget(*flags, "-c", 4096)
    for budget, first in ((whole - MIB, "--memory"), (least + MIB, "-c")):
        refused = weir("plan", dense.path, *flags, "-c", 4096, "--memory", budget, env=env, expect=3).err.splitlines()
        assert len(refused) == 3 and refused[0].startswith(f"weir: with {first} ")
        for line in refused[:2]:
            option, value = line.split()[2:4]
            given = {"-c": 4096, "--memory": budget, option: value.rstrip(",")}
            plan = weir_json("plan", dense.path, *flags, *[word for pair in given.items() for word in pair], env=env)
            assert line.endswith(f": {plan['rates']['decode_predicted']:.2f} tokens/s predicted")
    plan = weir_json("plan", dense.path, *flags, "-c", 4096, "--memory", whole, env=env)
    shorter = weir_json("plan", dense.path, *flags, "-c", 1024, "--memory", whole, env=env)
    assert plan["advice"] == {"context": 1024, "decode_predicted": shorter["rates"]["decode_predicted"]}
    assert shorter["rates"]["decode_predicted"] > 1.1 * plan["rates"]["decode_predicted"]
