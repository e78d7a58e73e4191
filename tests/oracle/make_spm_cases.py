#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/spm_cases.json: small vocabularies with scores, and the ids that two other programs give for them.

Usage: make_spm_cases.py tests/golden/spm_cases.json     (needs the Python packages sentencepiece, xllamacpp, gguf, numpy)

SentencePiece trains the vocabularies and encodes text without special tokens. llama.cpp, which defines what a GGUF file of this kind
means, encodes text with special tokens in it, with the key add_space_prefix true, false and absent.
"""
import io
import json
import pathlib
import random
import sys
import tempfile
import urllib.request

import gguf
import numpy as np
import sentencepiece
import xllamacpp

CORPUS = ["The river's edge wasn't quiet: they'll say we've seen 1234 birds, 56 boats and 7 bridges.",
          "for (int i = 0; i < n; i++) {\n    sum += a[i];\n}\n\n", "    indented    text\twith\t\ttabs\r\nand lines\r\n\r\n",
          "Größe, naïve café, Москва и река, 日本語の文字 中文字符, العربية, हिन्दी, 😀😀👍🏽", "====----====----!!!!....,,,,    \n\n\n\n",
          "aaaaaaaa bbbbbbbb abababab AAAA", "hello world, hello token, the tokens of the world", "a  b   c    d", "\t\t\t\tx\t y"]
USER = ["<|user|>", "<think>", "</think>"]
CONTROL = ["<|end|>"]
KINDS = {"normal": 1, "unknown": 2, "control": 3, "user": 4, "byte": 6}
PARTS = [" ", "  ", "   ", "\t", "\n", "\r\n", "a", "ab", "hello", " hello", "world", " the", "I'LL", "don't", "1", "1234567", "中文字", "ไทย", "العربية", "e\u0301",
         "👩\u200d🚀", "!!!", "...", "====", "_", "straße", "\u00a0", "\u3000", "\u1112\u1161\u11ab", "\U00010332", "\u2581", "\u0001", "token", "Москва"]
D3 = ["", " ", "a", " a", "<|end|>a", "<|end|> a", "a<|end|>b", "<|user|>a", "<|user|> a", "a<|user|>b", "  a", "<|end|><|user|>  a ", "<s>a", "<s> a", "</s>", " <s>"]
D5 = ["\t", " \t ", "a\t\tb", "\t" * 31, "a" + " " * 31 + "b", " " * 70, "\n \n\t \n", "x \t y\t  z"]


def train(prefix, byte_fallback):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in CORPUS * 4 for line in text.split("\n") if line), model_writer=out, model_type="bpe", character_coverage=1.0,
        vocab_size=520 if byte_fallback else 260, byte_fallback=byte_fallback, normalization_rule_name="identity", remove_extra_whitespaces=False,
        add_dummy_prefix=prefix, user_defined_symbols=USER, control_symbols=CONTROL, allow_whitespace_only_pieces=True, hard_vocab_limit=False,
        split_by_number=False, split_by_unicode_script=False, minloglevel=2)
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def vocabulary(sp):
    def kind(i):
        return "unknown" if sp.is_unknown(i) else "control" if sp.is_control(i) else "byte" if sp.is_byte(i) else "user" if sp.id_to_piece(i) in USER else "normal"

    n = sp.get_piece_size()
    return {"tokens": [sp.id_to_piece(i) for i in range(n)], "types": [KINDS[kind(i)] for i in range(n)], "scores": [sp.get_score(i) for i in range(n)]}


def write_model(path, words, prefix):
    """The smallest model that llama.cpp opens."""
    n_embd, n_vocab = 32, len(words["tokens"])
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_block_count(1)
    w.add_context_length(4096)
    w.add_embedding_length(n_embd)
    w.add_feed_forward_length(n_embd)
    w.add_head_count(1)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model("llama")
    w.add_token_list(words["tokens"])
    w.add_token_types(words["types"])
    w.add_token_scores(words["scores"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    if prefix is not None:
        w.add_add_space_prefix(prefix)
    square, words_by = np.zeros((n_embd, n_embd), np.float32), np.zeros((n_vocab, n_embd), np.float32)
    w.add_tensor("token_embd.weight", words_by)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        w.add_tensor(f"blk.0.{name}.weight", square)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        w.add_tensor(f"{name}.weight", np.ones(n_embd, np.float32))
    w.add_tensor("output.weight", words_by)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llamacpp_ids(path, texts):
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.warmup = 256, False
    server = xllamacpp.Server(params)

    def ids(text, special):
        body = json.dumps({"content": text, "add_special": False, "parse_special": special}).encode()
        with urllib.request.urlopen(urllib.request.Request(server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})) as answer:
            return json.load(answer)["tokens"]

    return [(text, special, ids(text, special)) for text in texts for special in ((False, True) if "<" in text else (False,))]


def main():
    random.seed(1)

    def mixed(parts, n):
        return "".join(random.choice(parts) * random.choice([1, 1, 1, 2, 9]) for _ in range(n))

    plain = [t for t in D3 if "<" not in t] + D5 + CORPUS + ["a" * 700, " " * 300 + "x", "=" * 129, "ab" * 200] + [mixed(PARTS, random.randint(1, 8)) for _ in range(70)]
    special = D3 + D5[:4] + [mixed(PARTS[:20] + USER + CONTROL + ["<s>", "</s>", "<unk>", "<0x41>", "<|us"], random.randint(2, 7)) for _ in range(30)]
    vocabularies = []
    for prefix, byte_fallback in ((True, True), (False, True), (True, False)):
        sp = train(prefix, byte_fallback)
        words = vocabulary(sp)
        entry = {"prefix": prefix, **words, "cases": [{"by": "sentencepiece", "prefix": prefix, "special": False, "s": t, "ids": sp.encode(t)} for t in plain]}
        for flag in (True, False, None) if byte_fallback else ():
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "m.gguf"
                write_model(path, words, flag)
                entry["cases"] += [{"by": "llama.cpp", "prefix": flag, "special": how, "s": t, "ids": ids} for t, how, ids in llamacpp_ids(path, special)]
        vocabularies.append(entry)
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        json.dump(vocabularies, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")
    print([(len(v["tokens"]), len(v["cases"])) for v in vocabularies])


if __name__ == "__main__":
    main()
