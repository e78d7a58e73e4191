#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/vocab_cases.inc: a small byte-level vocabulary and the ids that Hugging Face tokenizers give for it.

Usage: make_vocab_cases.py > tests/golden/vocab_cases.inc     (needs the Python package tokenizers)
"""
import json
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

CORPUS = ["The river's edge wasn't quiet: they'll say we've seen 1234 birds, 56 boats and 7 bridges.",
          "for (int i = 0; i < n; i++) {\n    sum += a[i];\n}\n\n",
          "    indented    text\twith\t\ttabs\r\nand lines\r\n\r\n", "Größe, naïve café, Москва и река, 日本語の文字 中文字符, العربية, हिन्दी, 😀😀👍🏽",
          "====----====----!!!!....,,,,    \n\n\n\n", "aaaaaaaa bbbbbbbb abababab AAAA", "hello world, hello token, the tokens of the world"]
MISSING = {0x04, 0x13, 0xF5}
SPECIAL = [("<|im_start|>", 3), ("<|im_end|>", 3), ("<unk>", 2), ("<think>", 4), ("</think>", 4)]
G2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
L3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
Q2 = L3.replace(r"\p{N}{1,3}", r"\p{N}")
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
CAPITALS, SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}*{SMALL}+{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}+{SMALL}*{CONTRACTION}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
V3 = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""


def isolated(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
BYTES_G2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
ROWS = {  # name: (pre-tokenizers, ignore_merges, normalizer)
    "smollm": ([pre_tokenizers.Digits(True), BYTES_G2], False, None),
    "gpt-2": ([BYTES_G2], False, None),
    "llama-bpe": ([isolated(L3), BYTES], True, None),
    "qwen2": ([isolated(Q2), BYTES], False, normalizers.NFC()),
    "default": ([isolated(r"[\p{P}\$\+<=>\^~\|]+"), isolated(G2), isolated(r"\p{N}+"), isolated("[0-9][0-9][0-9]"), BYTES], False, None),
}
MORE_ROWS = {  # held to every third text
    "tekken": ([isolated(O200K.replace(CONTRACTION, "").replace(r"\p{N}{1,3}", r"\p{N}")), BYTES], True, None),
    "gpt-4o": ([isolated(O200K), BYTES], True, None),
    "llama4": ([isolated(O200K), BYTES], False, None),
    "qwen35": ([isolated(Q2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")), BYTES], False, normalizers.NFC()),
    "deepseek-coder": ([isolated(r"[\r\n]"), isolated(r"\s?\p{L}+"), isolated(r"\s?\p{P}+"), isolated("[一-龥ࠀ-一가-\ud7ff]+"), isolated(r"\p{N}"), BYTES], False, None),
    "deepseek-v3": ([isolated(r"\p{N}{1,3}"), isolated("[一-龥\u3040-ゟ゠-ヿ]+"), isolated(V3), BYTES], False, None),
    "falcon": ([isolated(r"[\p{P}\$\+<=>\^~\|`]+"), isolated(G2), isolated("[0-9][0-9][0-9]"), BYTES], False, None),
    "bailingmoe": ([isolated(Q2.replace(r"\s*[\r\n]+", r"\s*[\r\n]")), BYTES], False, None),
    "seed-coder": ([isolated(Q2.replace(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+")), BYTES], False, None),
    "minicpm5": ([isolated(r"\p{N}{1,3}"), isolated(L3.replace(r"\p{N}{1,3}", r"\p{N}+")), BYTES], True, None),
}
CASES = ["HelloWORLDagain", "ÉCOLEnaïveÀ", "ЖЖжжЖ", "ǅungla'S aBC'll", "https://a.b/c//\n/", "x²³ ⅷ12345", "!abc #Def`x`", "$+<=>^~|`", "あいうカタカナ漢字x", "가나다abc",
         "a\u0301\u0301B", "ʰˣA", "日本語'S", "  \n \n\n  x", "don'T I'LL", "\r\n\r\nx\n", "...\n\n...\r\n", "1234567 12 1"]
PARTS = ["I'LL", "don't", "'S", "'\u017f", "they've", "\r\n", "\n\n\n", "   ", "\t", "\u00a0", "\u3000", "\u180e", "\x85", "\u2028", "1", "12", "1234567",
         "\u2167", "\u00bd", "中文字", "ไทย", "العربية", "\u1112\u1161\u11ab", "e\u0301", "a\u0323\u0301", "a\u0315\u0300", "👩\u200d🚀", "!!!", "...", "$+<=>^~|", "_", "x+y",
         "\x00", "\x04", "\x13\x07",
         "\ufeff", " hello", " world", "the", "ABC", "straße", "\u0958", "\uac00\u11a7", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<unk>", "<|im_", "token"]


def literal(data):
    out = ""
    for byte in data:
        plain = 0x20 <= byte < 0x7F and chr(byte) not in '"\\?'
        out += chr(byte) if plain else "\\%03o" % byte
    return '"' + out + '"'


def main():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = BYTES_G2
    trained.train_from_iterator(CORPUS * 3, trainers.BpeTrainer(vocab_size=480, initial_alphabet=alphabet, show_progress=False, min_frequency=2))

    model = json.loads(trained.to_str())["model"]
    plain = [i for i in range(256) if 33 <= i <= 126 or 161 <= i <= 172 or 174 <= i]
    spelled = dict(zip(plain + [i for i in range(256) if i not in plain], [chr(i) for i in plain] + [chr(256 + i) for i in range(68)]))
    lost = {spelled[b] for b in MISSING}
    order = sorted(model["vocab"], key=model["vocab"].get)
    tokens = [(t, 1) for t in order if not lost & set(t)] + SPECIAL + [("zebra", 1)]  # the last: only reached by ignore_merges
    merges = [tuple(m) for m in model["merges"] if not lost & set(m[0] + m[1])]
    ids = {t: i for i, (t, _) in enumerate(tokens)}
    random.seed(1)
    texts = ["", " ", "a", "hello world", "  hello", "e\u0301", "zebra zebra", "a" * 700, " " * 300 + "x", "=" * 129, "ab" * 200, "\u0301\u0323" * 80]
    texts += ["".join(random.choice(PARTS) * random.choice([1, 1, 1, 2, 9]) for _ in range(random.randint(1, 7))) for _ in range(45)]
    print("/* SPDX-License-Identifier: Apache-2.0 */\n/* Written by tests/oracle/make_vocab_cases.py: Hugging Face tokenizers' answers. Do not edit. */")
    print("#ifdef TOKEN")
    for text, kind in tokens:
        print(f"TOKEN({literal(text.encode())}, {kind})")
    print("#endif\n#ifdef MERGE")
    for a, b in merges:
        print(f"MERGE({literal((a + ' ' + b).encode())})")
    print("#endif\n#ifdef CASE")
    for name, (steps, ignore, normalizer) in {**ROWS, **MORE_ROWS}.items():
        hf = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=ignore))
        hf.pre_tokenizer = pre_tokenizers.Sequence(steps)
        if normalizer:
            hf.normalizer = normalizer
        hf.add_tokens([AddedToken(t, special=False, normalized=False) for t, k in SPECIAL if k == 4])
        hf.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in SPECIAL if k != 4])
        for text in texts if name in ROWS else texts[::3] + CASES:
            for special in (False, True) if "<" in text else (False,):
                hf.encode_special_tokens = not special
                got = hf.encode(text, add_special_tokens=False).ids
                seen = unicodedata.normalize("NFC", text) if normalizer else text
                dropped = sum(b in MISSING for b in seen.encode())
                flag, numbers = "true" if special else "false", ", ".join(map(str, got)) or "-1"
                print(f'CASE("{name}", {flag}, {literal(text.encode())}, {dropped}, {numbers})')
    print("#endif")


if __name__ == "__main__":
    main()
