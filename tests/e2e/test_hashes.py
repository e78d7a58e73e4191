# SPDX-License-Identifier: Apache-2.0
"""Hashes of logits as change detectors: a bit that moves is seen, whether or not it should have moved. Right and wrong are decided by tests/oracle."""
import hashlib
import json
import pathlib
import subprocess
import sys

import numpy as np
from command import GOLDEN, ROOT, weir_json

FILE = GOLDEN / "logit-hashes.json"
WHAT = "sha256 of weir's own logits (float32, row by row). Change detectors, not oracles. tests/oracle/make-goldens hashes makes them anew."


def fetched():
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "fetch-models"), "smollm2-135m"], capture_output=True, text=True, check=True)
    return pathlib.Path(done.stdout.split("\n")[0])


def prompts():
    ids = np.load(GOLDEN / "logprobs-smollm2-135m-a.npz")["ids"]
    return {"beginning": ids[:64].tolist(), "middle": ids[1600:1700].tolist(), "one word again and again": [504] * 40}


def hashes(model, folder):
    found = {}
    for name, ids in prompts().items():
        for flags in ((), ("--precise",)):
            (folder / "ids.json").write_text(json.dumps(ids))
            weir_json("eval", model, "--ids", folder / "ids.json", "--logits", folder / "out.npy", "-c", 128, *flags)
            found[" ".join((name, *flags))] = hashlib.sha256(np.load(folder / "out.npy").tobytes()).hexdigest()
    return found


def test_hashes(smollm2, tmp_path):
    assert hashes(smollm2, tmp_path) == json.loads(FILE.read_text(encoding="utf-8"))["hashes"]
