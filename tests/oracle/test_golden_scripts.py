# SPDX-License-Identifier: Apache-2.0
"""The scripts that hold weir's decoders and its GGUF reader and writer against the gguf package."""
import pathlib
import re
import subprocess
import sys

import pytest
import tiny_model
from command import ROOT, WEIR, environment

HERE = pathlib.Path(__file__).resolve().parent


def run(script, *arguments):
    """Runs a script that ends with `N passed, M failed`."""
    words = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=600, check=False)
    said = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    counts = re.search(r"^(\d+) passed, (\d+) failed$", done.stdout, re.M)
    assert done.returncode == 0 and counts, said
    assert int(counts[1]) > 0 and int(counts[2]) == 0, said
    return int(counts[1])


def test_decoders():
    """The hashes in the unit test of the decoders are those of the package."""
    assert run("quant_golden.py", "--check", ROOT / "tests" / "unit" / "test_quant.c") >= 5


def test_decoders_notice_a_wrong_hash(tmp_path):
    text = (ROOT / "tests" / "unit" / "test_quant.c").read_text()
    found = re.search(r"\{WR_TYPE_Q4_0, \d+, 0x([0-9a-f]{16})\}", text)
    (tmp_path / "wrong.c").write_text(text.replace(found[1], f"{int(found[1], 16) ^ 1:016x}"))
    words = [sys.executable, str(HERE / "quant_golden.py"), "--check", str(tmp_path / "wrong.c")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1 and "1 failed" in done.stdout, done


def test_gguf(smollm2, tmp_path):
    """Every key, element and tensor, in both directions."""
    tool = WEIR.parent / "tests" / "unit" / "test_gguf"
    if not tool.exists():
        pytest.skip(f"{tool} is not built (cmocka is needed)")
    assert run("gguf_check.py", tool, smollm2, tiny_model.write(tmp_path / "tiny.gguf", "Q8_0", True)) > 200
