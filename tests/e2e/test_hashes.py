# SPDX-License-Identifier: Apache-2.0
"""Hashes of logits as change detectors: a bit that moves is seen, whether or not it should have moved. Right and wrong are decided by tests/oracle."""
import hashlib
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tiny_model
from command import GOLDEN, ROOT, weir_json

FILE = GOLDEN / "logit-hashes.json"
WHAT = "sha256 of weir's own logits (float32, row by row). Change detectors, not oracles. tests/oracle/make-goldens hashes makes them anew."
REAL = ("smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m")
TINY = {"tiny qwen2": {"kind": "Q8_0", "arch": "qwen2"}, "tiny gemma3": {"kind": "Q8_0", "arch": "gemma3"}, "tiny gemma3 full": {"kind": "Q4_1", "arch": "gemma3", "full": True}}


def fetched(name):
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "fetch-models"), name], capture_output=True, text=True, check=True)
    return pathlib.Path(done.stdout.split("\n")[0])


def prompts(name):
    if name in TINY:
        return {"300 words": np.random.RandomState(8).randint(1, len(tiny_model.tokens()), size=300).tolist()}
    ids = np.load(GOLDEN / f"logprobs-{name}-a.npz")["ids"]
    found = {"beginning": ids[:64].tolist(), "middle": ids[1600:1700].tolist(), "one word again and again": [504] * 40}
    return {**found, "past the window": ids[:560].tolist()} if name == "gemma3-270m" else found


def hashes(name, folder):
    model = tiny_model.write(folder / "tiny.gguf", **TINY[name]) if name in TINY else fetched(name)
    found = {}
    for prompt, ids in prompts(name).items():
        for flags in ((), ("--precise",)):
            (folder / "ids.json").write_text(json.dumps(ids))
            weir_json("eval", model, "--ids", folder / "ids.json", "--logits", folder / "out.npy", "-c", max(128, len(ids)), *flags)
            found[" ".join((prompt, *flags))] = hashlib.sha256(np.load(folder / "out.npy").tobytes()).hexdigest()
    return found


@pytest.mark.parametrize("name", [REAL[0], *TINY, *(pytest.param(name, marks=pytest.mark.full) for name in REAL[1:])])
def test_hashes(tmp_path, name):
    assert hashes(name, tmp_path) == json.loads(FILE.read_text(encoding="utf-8"))["hashes"][name]
