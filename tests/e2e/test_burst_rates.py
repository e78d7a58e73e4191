# SPDX-License-Identifier: Apache-2.0
"""What weir plan predicts of bursts, and what a run says beside it, against E(K, a) / (T(K + 1) + drafting) worked out here from a stored profile."""
import pytest

from command import weir, weir_json
from profile_file import ACTIVATE, ATTEND, DECODE, IN_PASS, PREFILL, STAGE, Profile

FLAGS = ("-c", 512, "-t", 1, "--memory", "2G")


def expected(k, a):
    """Leviathan, Kalman, Matias (2023), equation 1."""
    return sum(a ** i for i in range(k + 1))


class Passes:
    """Of a model that is in memory, by one thread."""

    def __init__(self, path):
        model = weir_json("inspect", path)
        numbers = model["metadata"]
        self.layers, embd, ff = (numbers[f"llama.{key}"] for key in ("block_count", "embedding_length", "feed_forward_length"))
        heads, heads_kv, dim = (numbers[f"llama.attention.{key}"] for key in ("head_count", "head_count_kv", "key_length"))
        self.embd, self.queries = embd, heads / heads_kv
        weights = [t for t in model["tensors"] if len(t["shape"]) == 2 and t["name"] != "token_embd.weight"]
        self.one = sum(t["bytes"] for t in weights) / (DECODE * IN_PASS)
        self.many = 256 * sum(2 * t["shape"][0] * t["shape"][1] for t in weights) / PREFILL
        self.elements = self.layers * (4 * embd + 2 * heads * dim + heads_kv * dim + 2 * ff)
        self.kv = weir_json("plan", path, *FLAGS)["kv"]["bytes_per_position"]

    def seconds(self, rows, position=0):
        keys = sum(position + i + 1 for i in range(rows))
        queries = rows * self.queries
        attention = (position + rows) * self.kv / ATTEND + 4 * self.embd * keys * self.layers * (queries - 1) / queries / 1e12
        return self.one + (rows - 1) * (self.many - self.one) / 255 + attention + (5 * self.layers + 1) * STAGE + rows * self.elements / ACTIVATE

    def rate(self, k, a, draft=0.0, position=0):
        return expected(k, a) / (self.seconds(k + 1, position) + k * draft)


@pytest.fixture
def profile(dense, tmp_path):
    return Profile(dense.path, tmp_path / "cache")


@pytest.mark.parametrize("kind", ["ngram", "draft"])
def test_plan(dense, profile, tmp_path, kind):
    """The rate of the K that is named, which no other K is better than by more than the gate's margin."""
    env = profile.store()
    draft, drafting = (), 0.0
    if kind == "draft":
        small = tmp_path / "small.gguf"
        weir("synth", "1b-gqa", "--layers", 1, "--vocab", weir_json("inspect", dense.path)["metadata"]["llama.vocab_size"], "-o", small, expect=0)
        draft, drafting = ("--draft", small), Passes(small).seconds(1)
    passes = Passes(dense.path)
    plan = weir_json("plan", dense.path, *FLAGS, "--spec", kind, *draft, env=env)
    bursts, most = plan["spec"]["bursts"], plan["spec"]["most"]
    assert plan["spec"]["mode"] == kind and [b["acceptance"] for b in bursts] == [0.5, 0.7, 0.9]
    for b in bursts:
        a, k = b["acceptance"], b["k"]
        assert b["decode_predicted"] == pytest.approx(passes.rate(k, a, drafting), rel=0.002)
        assert b["decode_predicted"] >= max(passes.rate(i, a, drafting) for i in range(most + 1)) / 1.01, b
    assert bursts[0]["k"] < bursts[1]["k"] < bursts[2]["k"]
    shown = [line for line in weir("plan", dense.path, *FLAGS, "--spec", kind, *draft, env=env, expect=0).out.decode().splitlines() if "proposed at a time" in line]
    assert [int(line.split(", ")[1].split()[0]) for line in shown] == [b["k"] for b in bursts] and shown[0].startswith("bursts ")
    fixed = weir_json("plan", dense.path, *FLAGS, "--spec", kind, *draft, "--spec-k", 3, env=env)["spec"]["bursts"]
    for b in fixed:
        assert b["k"] == 3 and b["decode_predicted"] == pytest.approx(passes.rate(3, b["acceptance"], drafting), rel=1e-6)


def test_plan_for_less(dense, profile):
    """Of the K that there is memory for, where that is less than what is given, as is said."""
    flags = (*FLAGS, "--chunk", 8, "--spec-k", 64)
    plan, passes = weir_json("plan", dense.path, *flags, env=profile.store()), Passes(dense.path)
    most = plan["spec"]["most"]
    assert 0 < most < 64 and any(f"--spec-k 64: {most} is used" in line for line in plan["warnings"])
    for b in plan["spec"]["bursts"]:
        assert b["k"] == most and b["decode_predicted"] == pytest.approx(passes.rate(most, b["acceptance"]), rel=1e-6)


def test_plan_without(dense, profile):
    """A draft that takes as long as the model pays nothing; without speculation, or without a profile, nothing is said of bursts."""
    env = profile.store()
    same = weir_json("plan", dense.path, *FLAGS, "--draft", dense.path, env=env)
    assert same["spec"]["bursts"][0]["k"] == 0 and same["spec"]["bursts"][0]["decode_predicted"] == pytest.approx(same["rates"]["decode_predicted"])
    for flags, where in (("--spec", "off"), env), (("--draft", dense.path, "--spec-tree", 8), env), ((), {"XDG_CACHE_HOME": "/nowhere"}):
        plan = weir_json("plan", dense.path, *FLAGS, *flags, env=where)
        assert all(b["decode_predicted"] is None and b["k"] is None for b in plan["spec"]["bursts"])
        assert "bursts" not in weir("plan", dense.path, *FLAGS, *flags, env=where, expect=0).out.decode()


def test_run(dense, profile):
    """After a run: its own passes, as they were; and what the plan says for its acceptance. Itself as the draft makes both known."""
    env, passes, k, n = profile.store(), Passes(dense.path), 4, 10
    command = ("run", dense.path, "hello there", "--raw", "--ignore-eos", *FLAGS, "-n", 1 + n * (k + 1), "--spec-k", k)
    done = weir_json(*command, "--draft", dense.path, env=env)
    spec, rates = done["spec"], done["rates"]
    assert spec["passes"] == n and spec["acceptance"] == 1 and spec["predicted_k"] == k
    middle = done["n_prompt"] + n * (k + 1) // 2
    assert spec["predicted"] == pytest.approx(passes.rate(k, 1, passes.seconds(1, middle), middle), rel=0.01)
    assert rates["decode_predicted"] == pytest.approx(spec["predicted"], rel=0.01) and rates["predicted_from"] == "profile"
    shown = weir(*command, "--draft", dense.path, "--stats", env=env, expect=0).err
    assert "100 % were right" in shown and f"predicted {spec['predicted']:.2f} tokens/s with {k} proposed" in shown
    trees = weir_json(*command[:-2], "--draft", dense.path, "--spec-tree", k, env=env)
    assert 0 < trees["spec"]["acceptance"] <= 1 and trees["spec"]["predicted"] is None and trees["rates"]["decode_predicted"] > 0
    plain = weir_json(*command[:-2], "--spec", "off", env=env)
    assert plain["spec"]["acceptance"] is None and plain["spec"]["predicted"] is None
    assert plain["rates"]["decode_predicted"] == pytest.approx(1 / passes.seconds(1, middle), rel=0.01)
