# SPDX-License-Identifier: Apache-2.0
"""Bursts: every token is the one that plain decoding draws, whatever is proposed, however many at a time, and wherever weights, keys and values are."""
import itertools
import json

import pytest
import tiny_model
from command import weir, weir_json
from test_same_bits import covering

DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 33, 64)
SAMPLERS = {
    "greedy": ("--temp", 0),
    "sampled": ("--temp", 0.8, "--seed", 7),
    "penalized": ("--temp", 0.4, "--seed", 3, "--repeat-penalty", 1.1, "--frequency-penalty", 0.05, "--presence-penalty", 0.1, "--logit-bias", "5=1.5"),
    "untruncated": ("--temp", 0.3, "--seed", 11, "--top-k", 0, "--top-p", 1, "--min-p", 0),
}
WHERE = ("memory", "weights streamed", "spilled", "both streamed")
# Words that come again in other orders, longer than a tile of keys and values, so that what follows them is guessed, and often wrongly.
PROMPT = " ".join("the one the other {} said that the {} is the one".format(*pair) for pair in itertools.permutations(("rain", "sun", "moon", "sea"), 2))


def generated(model, *flags, prompt=PROMPT, n=200):
    done = weir_json("run", model, prompt, "--raw", "--ignore-eos", "-n", n, *flags)
    return {name: done[name] for name in ("ids", "text", "finish", "n_generated")}, done


def flags_of(model, where, folder, *flags):
    """For the least memory of a context that is streamed; weights in extents of a page."""
    flags = [*flags, "-c", 2560]
    if where in ("spilled", "both streamed"):
        flags += ["--kv-dir", folder, "--kv", "f16"]
    if where in ("weights streamed", "both streamed"):
        flags += ["--pin", 0, "--extent", 4096, "--ring", "128K"]
    if where == "weights streamed":
        return [*flags, "--memory", "1G"]
    if where == "memory":
        return flags
    return [*flags, "--memory", weir_json("plan", model, *flags)["min_budget"]]


@pytest.fixture(scope="module", params=tiny_model.ARCHES)
def model(request, tmp_path_factory):
    return tiny_model.write(tmp_path_factory.mktemp("speculation") / f"{request.param}.gguf", "Q8_0", arch=request.param)


def test_same_ids(model, tmp_path, say):
    plain = {name: generated(model, *sampler, "--spec", "off")[0] for name, sampler in SAMPLERS.items()}
    drafted = accepted = passes = n = 0
    rows = list(covering({"k": DEPTHS, "sampler": list(SAMPLERS), "where": WHERE, "threads": (1, 2, 3)}))
    for row in rows:
        flags = flags_of(model, row["where"], tmp_path, "--spec", "ngram", "--spec-k", row["k"], "-t", row["threads"])
        found, done = generated(model, *SAMPLERS[row["sampler"]], *flags)
        assert found == plain[row["sampler"]], row
        spec = done["spec"]
        assert 0 <= spec["accepted"] <= spec["drafted"] <= row["k"] * spec["passes"] and spec["passes"] + spec["accepted"] == done["n_generated"] - 1, (row, spec)
        assert (done["kv"]["on_disk"] > 0) == (row["where"] in ("spilled", "both streamed")), row
        assert (done["residency"]["streamed"] > 0) == (row["where"] in ("weights streamed", "both streamed")), row
        assert done["memory"]["peak_rss"] <= done["memory"]["budget"], row
        drafted, accepted, passes, n = drafted + spec["drafted"], accepted + spec["accepted"], passes + spec["passes"], n + 1
    assert 500 < accepted < 0.95 * drafted, (accepted, drafted)  # both kinds of proposals were there
    say(f"measured: {model.stem}: {n} combinations, {accepted} of {drafted} proposed tokens accepted, {passes} passes for {n * 199} tokens")


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
    end = weir_json("run", model, PROMPT, "--raw", "--logit-bias", "0=2", *SAMPLERS[sampler])
    assert weir_json("run", model, PROMPT, "--raw", "--logit-bias", "0=2", *flags)["ids"] == end["ids"]
    context = done["n_prompt"] + 40
    full = weir_json("run", model, PROMPT, "--raw", "--ignore-eos", "-c", context, *flags)
    assert full["ids"] == whole["ids"][:41] and full["finish"] == "length"


def test_turns(model, tmp_path):
    """A conversation goes back to where its last answer ended, and goes on from there."""
    turns = b"".join(b"the rain the sun the rain %d\n" % i for i in range(4))
    flags = ("chat", tiny_with_template(model, tmp_path), "--stdin", "-n", 40, "--ignore-eos", "--temp", 0.3, "--json")
    plain = weir(*flags, "--spec", "off", stdin=turns, expect=0).out
    assert len(plain.splitlines()) == 4
    assert weir(*flags, "--spec", "ngram", "--spec-k", 8, stdin=turns, expect=0).out == plain


def tiny_with_template(model, folder):
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    return tiny_model.write(folder / "chat.gguf", "Q8_0", arch=model.stem, template=template)


@pytest.mark.parametrize("where", ["memory", "spilled"])
def test_saved_contexts(model, tmp_path, where):
    """A context that was saved after bursts has the tokens that were drawn, is whole, and is gone on from as from a plain one."""
    flags = ["--temp", 0.3, "--seed", 5, *flags_of(model, where, tmp_path, "--spec", "ngram", "--spec-k", 33)[4:]]
    files = {spec: tmp_path / f"{spec}.kv" for spec in ("off", "ngram")}
    more = {"off": (), "ngram": ("--spec-k", 33)}
    first = [generated(model, *flags, "--spec", spec, *more[spec], "--save-context", file, n=330) for spec, file in files.items()]
    assert first[0][0] == first[1][0] and first[1][1]["spec"]["accepted"] > 0
    assert first[0][1]["n_saved"] == first[1][1]["n_saved"]
    second = {}
    for (spec, file), then in itertools.product(files.items(), ("off", "ngram")):
        weir("inspect", file, "--check", expect=0)
        second[spec, then] = generated(model, *flags, "--spec", then, *more[then], "--context", file, prompt=" and the one", n=60)[0]
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
