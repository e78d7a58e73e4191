# SPDX-License-Identifier: Apache-2.0
"""GGUF files that hold a vocabulary and no tensor: enough for `weir tokenize` and `weir detokenize`."""
import gzip
import json

from command import GOLDEN
from raw_gguf import ARRAY, BOOL, F32, I32, STRING, U32, Value, build


def write(path, tokens, types=None, scores=None, merges=None, template=None, **keys):
    """`keys`: the rest of tokenizer.ggml.*; None leaves a key out."""
    kinds = {bool: BOOL, int: U32, str: STRING}
    metadata = {"general.architecture": Value(STRING, "llama")}
    metadata.update({f"tokenizer.ggml.{name}": Value(kinds[type(value)], value) for name, value in keys.items() if value is not None})
    for name, element, values in (("tokens", STRING, tokens), ("token_type", I32, types), ("scores", F32, scores), ("merges", STRING, merges)):
        if values is not None:
            metadata[f"tokenizer.ggml.{name}"] = Value(ARRAY, (element, values))
    if template is not None:
        metadata["tokenizer.chat_template"] = Value(STRING, template)
    path.write_bytes(build(metadata, []))
    return path


def spm_vocabularies():
    """tests/golden/spm_cases.json; see make_spm_cases.py."""
    return json.loads((GOLDEN / "spm_cases.json").read_text(encoding="utf-8"))


def write_spm(path, words, prefix, **more):
    """One of spm_vocabularies."""
    return write(path, words["tokens"], words["types"], words["scores"], model="llama", add_space_prefix=prefix, **{"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, **more})


def write_small(path, name, **more):
    """A large model's vocabulary, cut down (make_small_vocabs.py); gives its golden cases. `more`: keys that differ."""
    with gzip.open(GOLDEN / f"small-vocab-{name}.json.gz", "rt", encoding="utf-8") as f:
        small = json.load(f)
    write(path, small["tokens"], small["types"], small.get("scores"), small.get("merges"), **{**small["keys"], **more})
    return small["cases"]
