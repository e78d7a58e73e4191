# SPDX-License-Identifier: Apache-2.0
"""Token ids against other tokenizers, the way back, and long runs of one kind of character."""
import gzip
import json

import pytest
from command import GOLDEN, weir, weir_measured

KIB = 1024
MISSING = bytes([0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, *range(0xF1, 0xF3), *range(0xF5, 0x100)])  # smollm2 has no token for these bytes


@pytest.fixture(scope="module")
def cases():
    with gzip.open(GOLDEN / "tokens-smollm2-a.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def strings(cases, scratch):
    path = scratch / "strings.jsonl"
    path.write_text("".join(json.dumps(case["s"]) + "\n" for case in cases))
    return path


def ids_of(model, strings, *flags):
    done = weir("tokenize", model, "--jsonl", strings, *flags, expect=0)
    return [json.loads(line) for line in done.out.splitlines()], done.err


def differences(cases, found, expected):
    assert len(found) == len(cases)
    return [(case["s"], ids, expected(case)) for case, ids in zip(cases, found) if ids != expected(case)]


def test_special_tokens_in_the_text(smollm2, strings, cases):
    """The model's own tokenizer decides where two others differ."""
    found, _ = ids_of(smollm2, strings, "--parse-special")
    wrong = differences(cases, found, lambda case: case.get("hf", case.get("ids_special", case["ids"])))
    assert not wrong, f"{len(wrong)} of {len(cases)}: {wrong[:3]}"


def test_plain_text(smollm2, strings, cases):
    """No text becomes a control token. Strings whose `hf` differs are those with bytes that the vocabulary lacks: another rule, tested above."""
    found, _ = ids_of(smollm2, strings)
    compared = [(case, ids) for case, ids in zip(cases, found) if "hf" not in case]
    assert len(compared) == len(cases) - 5
    wrong = differences(*zip(*compared), lambda case: case["ids"])
    assert not wrong, f"{len(wrong)} of {len(cases)}: {wrong[:3]}"


@pytest.mark.parametrize("flags", [(), ("--parse-special",)])
def test_round_trip(smollm2, strings, cases, flags, tmp_path):
    """Tokens spell their bytes whatever stands beside them, so all strings go back at once."""
    found, err = ids_of(smollm2, strings, *flags)
    ids = tmp_path / "ids.json"

    def back(lists):
        ids.write_text(json.dumps([i for one in lists for i in one]))
        return weir("detokenize", smollm2, "-f", ids, "--special", expect=0).out

    kept = [case["s"].encode().translate(None, MISSING) for case in cases]
    if back(found) != b"".join(kept):
        for one, expected in zip(found, kept):
            assert back([one]) == expected
    assert "dropped" in err


def test_drop_is_a_warning(smollm2, tmp_path):
    text = tmp_path / "text"
    text.write_bytes(b"a\x04b\x06\x06c")
    done = weir("tokenize", smollm2, "-f", text, "--json", expect=0)
    assert "3 bytes" in done.err and "dropped" in done.err
    back = weir("detokenize", smollm2, *done.json["ids"], "--json", expect=0)
    assert back.json["text"] == "abc"
    assert weir("tokenize", smollm2, "abc", expect=0).err == ""


def test_bytes_that_are_not_utf8(smollm2, tmp_path):
    """Any bytes go in, and come back."""
    text = tmp_path / "text"
    garbage = bytes(b for b in range(256) if b not in MISSING) * 3 + b"\xe4\xb8" + "中é\U0001F600".encode() + b"\x80\x80abc\xf0\x9f"
    text.write_bytes(garbage)
    ids = weir("tokenize", smollm2, "-f", text, "--json", expect=0).json["ids"]
    assert weir("detokenize", smollm2, json.dumps(ids), expect=0).out == garbage


LONG = {
    "letters": "a", "digits": "7", "spaces": " ", "newlines": "\n", "punctuation": "!", "apostrophes": "'", "mixed case": "aB", "ideographs": "中",
    "emoji": "\U0001F600", "marks": "\u0301", "crlf": "\r\n", "words": "the sea ", "angle": "<|", "almost special": "<|im_start",
}


@pytest.mark.parametrize("name", LONG)
def test_long_runs(smollm2, tmp_path, name, say):
    """4 MB of one kind: no crash on a stack of 256 KiB, and twice the text takes at most 2.5 times the time."""
    unit = LONG[name].encode()

    def tokenize(size):
        """Seconds of processor time, and ids."""
        (tmp_path / "text").write_bytes(unit * (size // len(unit)))
        done = weir_measured("tokenize", smollm2, "-f", tmp_path / "text", stack=256 * KIB, expect=0)
        return done.usage["cpu"], done.out.count(b" ") + 1

    base, _ = tokenize(len(unit))
    half, whole = 1e9, 1e9
    for _ in range(8):  # other programs on the same core only ever add time: the least counts, and a square law shows in every try
        (a, n_half), (b, n_whole) = tokenize(2_000_000), tokenize(4_000_000)
        half, whole = min(half, a - base), min(whole, b - base)
        linear = whole <= 2.5 * max(half, 0.05)  # below 50 ms the clock of the process decides
        if linear:
            break
    say(f"measured: tokenize 4 MB of {name}: {whole:.2f} s, {n_whole} ids")
    assert abs(n_whole - 2 * n_half) <= 4
    assert linear, (half, whole)
