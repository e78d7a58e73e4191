# SPDX-License-Identifier: Apache-2.0
"""bench/figures, the check that README and docs quote nothing but rows of bench/results.tsv: it passes here, and it can fail."""
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import xml.etree.ElementTree

import pytest

from command import ROOT

sys.path.insert(0, str(ROOT / "bench"))
loader = importlib.machinery.SourceFileLoader("figures", str(ROOT / "bench" / "figures"))
figures = importlib.util.module_from_spec(importlib.util.spec_from_loader("figures", loader))
loader.exec_module(figures)
import record  # noqa: E402

ROWS = {"m/decode/weir": {"value": 20.0, "low": 18.0, "high": 22.5, "n": 5.0, "against_value": 8.0, "ratio": 2.5},
        "m/read": {"value": 1234.56, "low": None, "high": None, "n": None, "against_value": None, "ratio": None}}


def test_what_the_repository_quotes_has_rows():
    done = subprocess.run([sys.executable, ROOT / "bench" / "figures", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("text, finding", [
    ("decodes 21<!--f m/decode/weir--> tokens/s\n", "21 is quoted, m/decode/weir gives 20"),
    ("decodes 20<!--f m/decode/waer--> tokens/s\n", "no row m/decode/waer"),
    ("2.4<!--f m/decode/weir ratio--> times\n", "gives 2.5"),
    ("2.5<!--f m/decode/weir ration--> times\n", "no field"),
    ("2.5<!--f m/read ratio--> times\n", "has no ratio"),
    ("decodes <!--f m/decode/weir--> tokens/s\n", "without a number before it"),
    ("decodes 20 tokens/s\n", "20 tokens/s is quoted without a row"),
    ("reads 2.1 GB/s, or 3<!--f m/decode/weir ratio--> of it\n", "2.1 GB/s is quoted without a row"),
    ("takes 0.5 s/token\n", "without a row"),
    ("| | weir, tokens/s | llama.cpp |\n|---|---|---|\n| 1b | 20<!--f m/decode/weir--> | 9 |\n", "3: 9 is quoted without a row"),
])
def test_a_wrong_figure_is_found(text, finding):
    _, wrong = figures.check_text("README.md", text, ROWS)
    assert any(finding in line for line in wrong), wrong


@pytest.mark.parametrize("text", [
    "decodes 20<!--f m/decode/weir--> tokens/s, 2.50<!--f m/decode/weir ratio--> times, spread 1.25<!--f m/decode/weir spread-->\n",
    "0.4<!--f m/decode/weir 1/ratio-->, 250<!--f m/decode/weir ratio*100--> %, 1,235<!--f m/read--> MB/s\n",
    "what it prints:\n\n```\ndecode 21.3 tokens/s\n```\n\nand `21.3 tokens/s`, and\n\n    21.3 tokens/s\n",
    "| 1b | bytes |\n|---|---|\n| Q4_0 | 18 |\n",
    "in 5 s, with 2 threads of 3 GB\n",
])
def test_a_right_text_is_left_alone(text):
    fixed, wrong = figures.check_text("README.md", text, ROWS)
    assert not wrong and fixed == text


def test_numbers_are_replaced_in_their_own_form():
    fixed, _ = figures.check_text("README.md", "19.0<!--f m/decode/weir--> and 9,999.0<!--f m/read--> and `1<!--f m/read-->`", ROWS)
    assert fixed == "20.0<!--f m/decode/weir--> and 1,234.6<!--f m/read--> and `1<!--f m/read-->`"


def test_rows_are_recorded_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results.tsv")
    row_id = record.record("decode/1b/weir", "decode", "synth 1b", "2\tthreads", [3.0, 1.0, 2.0], "tokens/s", "peer", 4.0)
    (row,) = record.rows()
    assert row["id"] == row_id == record.machine() + "/decode/1b/weir" and row["cpu"] == record.cpu()
    assert (row["value"], row["low"], row["high"], row["n"], row["ratio"]) == (2, 1, 3, 3, 0.5) and row["setting"] == "2 threads"
    for bad in ({"values": float("nan")}, {"values": []}, {"values": 1.0, "verdict": "good"}):
        with pytest.raises((ValueError, ArithmeticError)):
            record.record("decode/1b/weir", "decode", "synth 1b", "", **{"unit": "tokens/s", **bad})
    with open(tmp_path / "results.tsv", "a", encoding="utf-8") as out:
        out.write("a row with too few columns\n")
    with pytest.raises(ValueError, match="results.tsv:3"):
        record.rows()


def plot(*arguments, rows):
    table = json.dumps({"bench": "gemm", "rows": rows})
    return subprocess.run([sys.executable, ROOT / "bench" / "plot", "-", *arguments], input=table, capture_output=True, text=True, check=False)


def test_bench_rows_are_drawn():
    rows = [{"shape": "64x64", "format": "Q4_0", "m": m, "unit": "ops/s", "rate": 5e9 * m, "ceiling": 1e10 * m, "verified": m < 4, "noisy": m == 1, "isa": "avx2", "threads": 2}
            for m in (1, 2, 4)]
    done = plot(rows=rows)
    assert done.returncode == 0, done.stderr
    svg = xml.etree.ElementTree.fromstring(done.stdout)
    words = [node.text for node in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert svg.get("width") == "800" and "weir bench gemm" in words and "rate, Gops/s" in words
    assert "5.00, 50 %, noisy" in words and "10.0, 50 %" in words and "20.0, 50 %, NOT VERIFIED" in words
    bars = [float(node.get("width")) for node in svg.iter("{http://www.w3.org/2000/svg}rect") if "url" in node.get("fill", "")]
    assert bars[1] == pytest.approx(2 * bars[0], abs=0.2) and bars[2] == pytest.approx(4 * bars[0], abs=0.4)
    done = plot("--x", "m", rows=rows)
    (curve,) = xml.etree.ElementTree.fromstring(done.stdout).iter("{http://www.w3.org/2000/svg}polyline")
    points = [tuple(map(float, point.split(","))) for point in curve.get("points").split()]
    assert points[1][0] - points[0][0] > 0 and points[0][1] - points[1][1] == pytest.approx((points[1][1] - points[2][1]) / 2, abs=0.2)
    assert plot("--x", "format", rows=rows).returncode == 1 and plot(rows=[]).returncode == 1
