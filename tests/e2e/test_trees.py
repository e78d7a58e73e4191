# SPDX-License-Identifier: Apache-2.0
"""Trees of rows in one pass: every row has the logits, to the bit, of a plain pass over its own path, and what is kept of a tree is what that would have stored."""
import json
import subprocess

import pytest
import tiny_model
from command import WEIR, environment, weir_json
from test_same_bits import covering

WHERE = ("memory", "weights streamed", "spilled", "both streamed")


def forced(model, seed, n_trees, *options):
    done = subprocess.run([WEIR.parent / "tests" / "trees", model, str(seed), str(n_trees), *map(str, options)], capture_output=True, env=environment(), timeout=600, check=False)
    assert done.returncode == 0, (seed, options, done.stderr.decode())
    return json.loads(done.stdout)


def options_of(model, folder, where, **more):
    options = ["ctx=2048", f"kv-dir={folder}", f"draft={model}", "spec-tree=64", *(f"{name}={value}" for name, value in more.items())]
    if where in ("weights streamed", "both streamed"):
        options += ["pin=0", "extent=4096", "ring=128K"]
    if where in ("spilled", "both streamed"):
        flags = [word for option in options for word in ("--" + option).split("=")]
        options.append(f"memory={weir_json('plan', model, *flags)['min_budget']}")
    return options


@pytest.mark.parametrize("arch", tiny_model.ARCHES)
def test_forced(arch, tmp_path, say):
    """Random shapes and tokens, in pairs of all settings."""
    model = tiny_model.write(tmp_path / f"{arch}.gguf", "Q8_0", arch=arch)
    total = {"rows": 0, "branches": 0, "off_chain": 0, "read_kv": 0}
    rows = list(covering({"kv": ("f16", "q8_0", "k8v4", "f32"), "where": WHERE, "threads": (1, 2, 3), "chunk": (33, 128)}))
    for seed, row in enumerate(rows):
        done = forced(model, seed, 20, *options_of(model, tmp_path, **row))
        assert (done["read_weights"] > 0) == (row["where"] in ("weights streamed", "both streamed")), row
        assert (done["read_kv"] > 0) <= (row["where"] in ("spilled", "both streamed")), row
        assert 0 < done["peak"] <= done["reserved"], row
        total = {name: total[name] + done[name] for name in total}
    assert min(total.values()) > 10 * len(rows)
    say(f"measured: {arch}: {len(rows)} combinations, {total['rows']} rows of trees of {total['branches']} branches, {total['off_chain']} paths kept that were not the first")


def test_real_model(smollm2, tmp_path):
    forced(smollm2, 5, 6, "memory=1500M", "ctx=1024")
