# SPDX-License-Identifier: Apache-2.0
"""Bursts: every token is the one that plain decoding draws, whatever is proposed, however many at a time, and wherever weights, keys and values are."""
import itertools
import json
import re

import pytest
import tiny_model
import twin_model
from command import weir, weir_json
from test_same_bits import covering

DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 33, 64)
SAMPLERS = {
    "greedy": ("--temp", 0),
    "sampled": ("--temp", 0.8, "--seed", 7),
    "penalized": ("--temp", 0.4, "--seed", 3, "--repeat-penalty", 1.1, "--frequency-penalty", 0.05, "--presence-penalty", 0.1, "--logit-bias", "5=1.5"),
    "untruncated": ("--temp", 0.3, "--seed", 11, "--top-k", 0, "--top-p", 1, "--min-p", 0),
}
LARGE = 50 << 20  # bytes of a file: real models are
WHERE = ("memory", "weights streamed", "spilled", "both streamed")
# Words that come again in other orders, longer than a tile of keys and values, so that what follows them is guessed, and often wrongly.
PROMPT = " ".join("the one the other {} said that the {} is the one".format(*pair) for pair in itertools.permutations(("rain", "sun", "moon", "sea"), 2))


def generated(model, *flags, prompt=PROMPT, n=200):
    done = weir_json("run", model, prompt, "--raw", "--ignore-eos", "-n", n, *flags)
    return {name: done[name] for name in ("ids", "text", "finish", "n_generated")}, done


def flags_of(model, where, folder, *flags):
    """For the least memory of a context that is streamed; weights in extents of a page, or of so much that a real model is read in bearable time."""
    large = model.stat().st_size >= LARGE
    flags = [*flags, "-c", 2560]
    if where in ("spilled", "both streamed"):
        flags += ["--kv-dir", folder, "--kv", "f16"]
    if where in ("weights streamed", "both streamed"):
        flags += ["--pin", 0, "--extent", "1M" if large else 4096, "--ring", "8M" if large else "128K"]
    if where == "weights streamed":
        return [*flags, "--memory", "2G" if large else "1G"]
    if where == "memory":
        return flags
    return [*flags, "--memory", weir_json("plan", model, *flags)["min_budget"]]


@pytest.fixture(scope="module", params=tiny_model.ARCHES)
def model(request, tmp_path_factory):
    return tiny_model.write(tmp_path_factory.mktemp("speculation") / f"{request.param}.gguf", "Q8_0", arch=request.param)


def check_combinations(model, folder, say, drafts, *, option="--spec-k", **how):
    """Pairs of all settings; `drafts` gives the name of each drafter its flags. Proposed and accepted tokens of each drafter."""
    plain = {name: generated(model, *sampler, "--spec", "off", **how)[0] for name, sampler in SAMPLERS.items()}
    counts = {name: [0, 0, 0, 0] for name in drafts}
    rows = list(covering({"k": DEPTHS, "sampler": list(SAMPLERS), "where": WHERE, "threads": (1, 2, 3), "draft": list(drafts)}))
    for row in rows:
        flags = flags_of(model, row["where"], folder, *drafts[row["draft"]], option, row["k"], "-t", row["threads"])
        found, done = generated(model, *SAMPLERS[row["sampler"]], *flags, **how)
        assert found == plain[row["sampler"]], row
        spec = done["spec"]
        assert 0 <= spec["accepted"] <= spec["drafted"] <= row["k"] * spec["passes"] and spec["passes"] + spec["accepted"] == done["n_generated"] - 1, (row, spec)
        assert (done["kv"]["on_disk"] > 0) == (row["where"] in ("spilled", "both streamed")), row
        if row["where"] != "spilled" or model.stat().st_size < LARGE:  # a large model's least memory streams weights too
            assert (done["residency"]["streamed"] > 0) == (row["where"] in ("weights streamed", "both streamed")), row
        assert done["memory"]["peak_rss"] <= done["memory"]["budget"], row
        draft = done["memory"]["accounts"]["draft"]
        assert 0 < draft["peak"] <= draft["reserved"], (row, draft)
        counts[row["draft"]] = [a + b for a, b in zip(counts[row["draft"]], (spec["drafted"], spec["accepted"], spec["passes"], 1))]
    for name, (drafted, accepted, passes, n) in counts.items():
        say(f"measured: {model.stem}, {name}: {n} combinations, {accepted} of {drafted} proposed tokens accepted, {passes} passes for {passes + accepted} tokens")
    return counts


def test_same_ids(model, tmp_path, say):
    drafted, accepted, _, _ = check_combinations(model, tmp_path, say, {"ngram": ("--spec", "ngram")})["ngram"]
    assert 500 < accepted < 0.95 * drafted  # both kinds of proposals were there


def test_draft_models(model, tmp_path, say):
    """Itself as the draft is always right, at any temperature; the same weights in 4 bits often, others hardly ever."""
    rough = tiny_model.write(tmp_path / "rough.gguf", "Q4_0", arch=model.stem)
    other = tiny_model.write(tmp_path / "other.gguf", "Q8_0", arch=model.stem, change=lambda name, x: -x if name.endswith("ffn_down.weight") else x)
    drafts = {"itself": model, "rough": rough, "other": other}
    counts = check_combinations(model, tmp_path, say, {name: ("--spec", "draft", "--draft", path) for name, path in drafts.items()})
    itself, right, wrong = (accepted / drafted for drafted, accepted, _, _ in (counts[name] for name in drafts))
    assert itself == 1 and 4 * wrong < right < 1
    per_pass = {name: 1 + accepted / passes for name, (_, accepted, passes, _) in counts.items()}
    trees = check_combinations(model, tmp_path, say, {name: ("--draft", drafts[name]) for name in ("rough", "other")}, option="--spec-tree")
    assert all(1 + accepted / passes > 0.9 * per_pass[name] for name, (_, accepted, passes, _) in trees.items())


def test_draft_auto(model, tmp_path):
    """What the gate chooses by the clock, lines and trees: the same tokens."""
    rough = tiny_model.write(tmp_path / "rough.gguf", "Q4_0", arch=model.stem)
    drafted = 0
    for sampler, where in itertools.product(("greedy", "sampled"), WHERE):
        found, done = generated(model, *SAMPLERS[sampler], *flags_of(model, where, tmp_path, "--draft", rough), n=400)
        assert found == generated(model, *SAMPLERS[sampler], "--spec", "off", n=400)[0], (sampler, where)
        drafted += done["spec"]["drafted"]
    assert drafted > 0


def test_coldest(model):
    """A temperature whose inverse no float holds: itself as the draft is sure of the one token, and right."""
    flags = ("--temp", 1e-40)
    found, done = generated(model, *flags, "--draft", model, "--spec-tree", 8, n=60)
    assert found == generated(model, *flags, "--spec", "off", n=60)[0]
    assert done["spec"]["accepted"] == done["spec"]["drafted"] > 40


EDIT = """Repeat this function, but rename the variable total to amount.

def bill(items, rate):
    total = 0
    for item in items:
        if item.price > 0:
            total = total + item.price * item.count
    total = total + total * rate
    return total

The function with the variable renamed:

def bill(items, rate):
"""


def test_smollm2(smollm2):
    """A real vocabulary, whose rows of logits do not all fit in idle scratch at the smallest budget."""
    how = {"prompt": EDIT, "n": 48}
    for sampler in ("greedy", "sampled"):
        plain = generated(smollm2, *SAMPLERS[sampler], "--spec", "off", **how)[0]
        for k, draft in ((5, ("ngram",)), (64, ("ngram",)), (8, ("draft", "--draft", smollm2))):
            flags = ("-c", 512, "--spec", *draft, "--spec-k", k)
            least = weir_json("plan", smollm2, *flags)["min_budget"] + (16 << 20)
            found, done = generated(smollm2, *SAMPLERS[sampler], *flags, "--memory", least, **how)
            assert found == plain and done["spec"]["accepted"] > 0 and done["residency"]["streamed"] > 0
            assert done["memory"]["peak_rss"] <= least
            assert len(draft) == 1 or done["spec"]["accepted"] == done["spec"]["drafted"]


@pytest.mark.full
def test_real_models(real, tmp_path, say):
    """Itself as the draft, and the same weights in 4 bits."""
    twin = twin_model.write(real, tmp_path / "twin.gguf")
    drafts = {"ngram": ("--spec", "ngram"), **{path.stem: ("--spec", "draft", "--draft", path) for path in (real, twin)}}
    counts = check_combinations(real, tmp_path, say, drafts, prompt=EDIT, n=48)
    assert counts[real.stem][0] == counts[real.stem][1] and 0 < counts["twin"][1] < counts["twin"][0]
    twin.unlink()


def test_draft_refused(tiny, model, tmp_path):
    """E9: a draft of another vocabulary, also one with a token more, or the same number of tokens; one that is not used; one that does not fit."""
    weir("synth", "tiny", "--type", "q4_0", "--vocab", 2001, "-o", tmp_path / "more.gguf", expect=0)
    done = weir("run", tiny, PROMPT, "--raw", "--spec", "draft", "--draft", tmp_path / "more.gguf", expect=1)
    assert "more.gguf" in done.err and "2001 tokens, not 2000" in done.err

    def rename(keys):
        keys["tokenizer.ggml.tokens"].value[7] = "\u0100\u0100"

    renamed = tiny_model.write(tmp_path / "renamed.gguf", "Q8_0", arch=model.stem, keys=rename)
    done = weir("run", model, PROMPT, "--raw", "--spec", "draft", "--draft", renamed, expect=1)
    assert "renamed.gguf" in done.err and "token 7 is another" in done.err
    assert "--draft MODEL" in weir("run", model, PROMPT, "--spec", "draft", expect=2).err
    assert "--spec off" in weir("run", model, PROMPT, "--spec", "off", "--draft", model, expect=2).err
    assert "--draft MODEL" in weir("run", model, PROMPT, "--spec-tree", 8, expect=2).err
    assert "--spec-k" in weir("run", model, PROMPT, "--draft", model, "--spec-k", 8, "--spec-tree", 8, expect=2).err
    assert "absent.gguf" in weir("run", model, PROMPT, "--spec", "draft", "--draft", tmp_path / "absent.gguf", expect=5).err


def test_draft_in_the_budget(model, tmp_path):
    """A14: the smallest budget grows by the draft's weights, keys and values; it is kept, and one byte less is refused."""
    off = weir_json("plan", model, "-c", 1024, "--spec", "off")
    flags = ("-c", 1024, "--spec", "draft", "--draft", model, "--spec-k", 4)
    plan = weir_json("plan", model, *flags)
    size = off["weight_bytes"] + 1024 * off["kv"]["bytes_per_position"]
    least = plan["min_budget"]
    assert least - off["min_budget"] >= size and plan["memory"]["accounts"]["draft"]["reserved"] >= size
    found, done = generated(model, *flags, "--memory", least, n=60)
    assert found == generated(model, "--spec", "off", n=60)[0] and done["spec"]["accepted"] == done["spec"]["drafted"] > 0
    assert done["memory"]["peak_rss"] <= least
    assert "draft" in weir("run", model, PROMPT, *flags, "--memory", least - 1, expect=3).err


@pytest.mark.parametrize("sampler", ["greedy", "penalized"])
def test_where_it_ends(model, tmp_path, sampler):
    """At every length, at stop strings that begin or end inside a burst, at an end token, and where the context is full."""
    flags = [*SAMPLERS[sampler], "--spec", "ngram", "--spec-k", 16]
    whole, done = generated(model, *SAMPLERS[sampler], "--spec", "off", n=120)
    assert generated(model, *flags, n=120)[0] == whole
    for n in (1, 2, 3, 17, 18, 50, 83):
        assert generated(model, *flags, n=n)[0]["ids"] == whole["ids"][:n]
    text = whole["text"]
    for begin in range(20, min(len(text) - 3, 100), 13):
        stop = ("--stop", text[begin:begin + 3])
        if "\ufffd" not in stop[1] and "\0" not in stop[1]:
            assert generated(model, *flags, *stop, n=120)[0] == generated(model, *SAMPLERS[sampler], *stop, "--spec", "off", n=120)[0]
    end = weir_json("run", model, PROMPT, "--raw", "--logit-bias", "0=2", *SAMPLERS[sampler], "--spec", "off")
    assert weir_json("run", model, PROMPT, "--raw", "--logit-bias", "0=2", *flags)["ids"] == end["ids"]
    context = done["n_prompt"] + 40
    full = weir_json("run", model, PROMPT, "--raw", "--ignore-eos", "-c", context, *flags)
    assert full["ids"] == whole["ids"][:41] and full["finish"] == "length"


def test_turns(model, tmp_path):
    """A conversation goes back to where its last answer ended, and goes on from there; some of what is proposed meanwhile is right, and some is not."""
    turns = b"".join(b"the rain the sun the rain %d\n" % i for i in range(4))
    flags = ("chat", tiny_with_template(model, tmp_path), "--stdin", "-n", 40, "--ignore-eos", "--temp", 0.3, "--json")
    plain = weir(*flags, "--spec", "off", stdin=turns, expect=0).out
    assert len(plain.splitlines()) == 4
    done = weir(*flags, "--spec", "ngram", "--spec-k", 8, "--stats", stdin=turns, expect=0)
    drafted, accepted = map(int, re.search(r"^speculation +ngram: (\d+) tokens proposed, (\d+) accepted", done.err, re.M).groups())
    assert done.out == plain and 0 < accepted < drafted, done.show()


def tiny_with_template(model, folder):
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    return tiny_model.write(folder / "chat.gguf", "Q8_0", arch=model.stem, template=template)


@pytest.mark.parametrize("where", ["memory", "spilled"])
def test_saved_contexts(model, tmp_path, where):
    """A context that was saved after bursts has the tokens that were drawn, is whole, and is gone on from as from a plain one."""
    kinds = {"off": ("--spec", "off"), "ngram": ("--spec", "ngram", "--spec-k", 33), "tree": ("--draft", model, "--spec-tree", 16)}
    flags = ["--temp", 0.3, "--seed", 5, *flags_of(model, where, tmp_path, *kinds["tree"])[4:]]
    files = {kind: tmp_path / f"{kind}.kv" for kind in kinds}
    first = [generated(model, *flags, *kinds[kind], "--save-context", file, n=330) for kind, file in files.items()]
    assert all(found == first[0][0] and done["n_saved"] == first[0][1]["n_saved"] for found, done in first)
    assert all(done["spec"]["accepted"] > 0 for _, done in first[1:])
    second = {}
    for (kind, file), then in itertools.product(files.items(), kinds):
        weir("inspect", file, "--check", expect=0)
        second[kind, then] = generated(model, *flags, *kinds[then], "--context", file, prompt=" and the one", n=60)[0]
    assert len({json.dumps(found) for found in second.values()}) == 1


def test_memory(model):
    """What speculation needs is in the plan: asked for, in the smallest budget too; by itself it takes a part that changes nothing."""
    off, auto = (weir_json("plan", model, "-c", 1024, "--spec", spec) for spec in ("off", "auto"))
    assert off["min_budget"] == auto["min_budget"] and off["memory"]["accounts"]["draft"]["reserved"] == 0
    least = [weir_json("plan", model, "-c", 1024, "--spec", "ngram", "--spec-k", k)["min_budget"] for k in DEPTHS]
    assert off["min_budget"] < least[0] and least == sorted(least)
    flags = ("-c", 1024, "--spec", "ngram", "--spec-k", 64)
    found, done = generated(model, *flags, "--memory", least[-1], n=60)
    draft = done["memory"]["accounts"]["draft"]
    assert 0 < draft["peak"] <= draft["reserved"] and done["memory"]["peak_rss"] <= least[-1]
    assert found == generated(model, "--spec", "off", n=60)[0]
    refused = weir("run", model, PROMPT, *flags, "--memory", least[-1] - 1, expect=3)
    assert "draft" in refused.err and str(least[-1]) in refused.err
    small = weir_json("run", model, "one", "--raw", "-n", 2, "-c", 1024, "--spec", "auto", "--memory", off["min_budget"])
    assert small["spec"]["mode"] == "off" and small["memory"]["accounts"]["draft"]["reserved"] == 0
