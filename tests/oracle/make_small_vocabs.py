#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cuts the vocabularies of large models down to what some of their golden strings can use: tests/golden/small-vocab-NAME.json.gz.

Usage: make_small_vocabs.py MODEL.gguf tests/golden/tokens-NAME-a.jsonl.gz tests/golden/small-vocab-NAME.json.gz

A token can take part in a string only if its text lies in it, so the others can go, and with them the merges that name them; ids become
the positions among those that stay. Special tokens stay where the strings or the file's keys name them; byte tokens all stay.
"""
import gzip
import json
import sys
import unicodedata

import gguf

EVERY = 12  # of the golden strings, one in so many
KEYS = ("model", "pre", "add_bos_token", "add_space_prefix")
SPACE = "\u2581"


def byte_alphabet():
    plain = [i for i in range(256) if 33 <= i <= 126 or 161 <= i <= 172 or 174 <= i]
    return dict(zip(plain + [i for i in range(256) if i not in plain], [chr(i) for i in plain] + [chr(256 + i) for i in range(68)]))


def main():
    model, golden, out = sys.argv[1:]
    fields = gguf.GGUFReader(model).fields
    value = {key: fields[f"tokenizer.ggml.{key}"].contents() for key in KEYS if f"tokenizer.ggml.{key}" in fields}
    tokens, types = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type"))
    with gzip.open(golden, "rt", encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines][::EVERY]
    by_score = value["model"] == "llama"
    alphabet = byte_alphabet()
    longest = max(map(len, tokens))
    here = set()
    for case in cases:
        for text in {case["s"], unicodedata.normalize("NFC", case["s"])}:
            spelled = text.replace(" ", SPACE) if by_score else "".join(alphabet[b] for b in text.encode())
            for form in {spelled, text}:  # special tokens are met as they are
                here |= {form[i:j] for i in range(len(form)) for j in range(i + 1, min(len(form), i + longest) + 1)}
    named = {i for case in cases for key in ("ids", "ids_special", "hf") for i in case.get(key, [])}
    kept = [i for i, (text, kind) in enumerate(zip(tokens, types)) if text in here or i in named or kind == 6 or (not by_score and text in alphabet.values())]
    place = {old: new for new, old in enumerate(kept)}
    small = {"keys": value, "tokens": [tokens[i] for i in kept], "types": [types[i] for i in kept]}
    if by_score:
        scores = fields["tokenizer.ggml.scores"].contents()
        small["scores"] = [scores[i] for i in kept]
    else:
        have = set(small["tokens"])
        pairs = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"].contents()]
        small["merges"] = [f"{a} {b}" for a, b in pairs if a in have and b in have and a + b in have]
    for name in ("bos", "eos", "unknown"):
        key = f"tokenizer.ggml.{name}_token_id"
        if key in fields and fields[key].contents() in place:
            small["keys"][f"{name}_token_id"] = place[fields[key].contents()]
    small["cases"] = [{key: [place[i] for i in v] if isinstance(v, list) else v for key, v in case.items()} for case in cases]
    with gzip.GzipFile(out, "wb", mtime=0) as f:
        f.write(json.dumps(small, ensure_ascii=False).encode())
    print(f"{out}: {len(kept)} of {len(tokens)} tokens, {len(cases)} strings")


if __name__ == "__main__":
    main()
