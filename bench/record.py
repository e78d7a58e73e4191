# SPDX-License-Identifier: Apache-2.0
"""bench/results.tsv: what was measured or tried. One number a row, one function that writes them.

    from record import record
    record("in-core/decode/1b/weir", "decode in memory", "synth-1b-q4_0.gguf", "2 threads, context 1024", rates, "tokens/s",
           against="llama.cpp", against_value=statistics.median(peer))

Columns, separated by tabs (the first line names them); what is not known is empty:
  id             machine/what/subject/who: of letters, digits and .-_, words that README and docs quote it by. A measurement that is repeated on
                 the same machine has the same id: the last row of an id counts, the rows before it are its history
  date, cpu      when, and on which CPU (how many of them, their best instruction set)
  what, subject  what was measured; the model or the shape
  setting        everything that a repetition has to set: threads, budget, context, priority ...
  value, unit    the number (of several rounds the median). A rate's unit has a slash: tokens/s, GB/s, s/token
  low, high, n   smallest, largest and number of the rounds
  against, against_value, ratio   what it is held against, in the same unit; ratio is value / against_value
  why, verdict   what else there is to say; measured, or kept or not kept of something that was tried
"""
import datetime
import fcntl
import math
import os
import pathlib
import re
import statistics

RESULTS = pathlib.Path(os.environ.get("WEIR_RESULTS") or pathlib.Path(__file__).resolve().parent / "results.tsv")
COLUMNS = ("id", "date", "cpu", "what", "subject", "setting", "value", "unit", "low", "high", "n", "against", "against_value", "ratio", "why", "verdict")
VERDICTS = ("measured", "kept", "not kept")
BEST_FLAGS = (("amx_tile", "AMX"), ("avx512_vnni", "AVX-512 VNNI"), ("avx512f", "AVX-512"), ("avx2", "AVX2"), ("asimd", "NEON"))


def cpu():
    """What the column `cpu` says of this machine: "Intel Xeon, 2 CPUs, AMX"."""
    info = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    field = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in info.splitlines())}
    name = " ".join(re.sub(r"\((R|TM)\)|\bProcessor\b|\bCPU\b|@.*", "", field.get("model name", "unknown")).split())
    flags = field.get("flags", field.get("Features", "")).split()
    return ", ".join([name, f"{os.cpu_count()} CPUs", *[word for flag, word in BEST_FLAGS if flag in flags][:1]])


def machine():
    """The first part of an id: intel-xeon-2-cpus-amx."""
    return re.sub(r"[^a-z0-9]+", "-", cpu().lower())


def number(x):
    """A number as it is written: whole, or six digits of it."""
    return str(x) if isinstance(x, int) else f"{x:.6g}"


def record(key, what, subject, setting, values, unit, against="", against_value=None, verdict="measured", why=""):
    """Appends a row. values: a number, or those of all rounds; key: the id after the machine. Gives the id."""
    values = values if isinstance(values, (list, tuple)) else [values]
    numbers = [*values, *([] if against_value is None else [against_value])]
    if not all(math.isfinite(x) for x in numbers) or verdict not in VERDICTS or not re.fullmatch(r"[\w.-]+(/[\w.-]+)+", key):
        raise ValueError(f"not a row of results.tsv: {key} {numbers} {verdict}")
    middle = statistics.median(values)
    rounds = [number(min(values)), number(max(values)), str(len(values))] if len(values) > 1 else [""] * 3
    compared = ["", ""] if against_value is None else [number(against_value), f"{middle / against_value:.4g}" if against_value else ""]
    row = [f"{machine()}/{key}", str(datetime.date.today()), cpu(), what, subject, setting, number(middle), unit, *rounds, against, *compared, why, verdict]
    with open(RESULTS, "a", encoding="utf-8") as out:
        fcntl.flock(out, fcntl.LOCK_EX)
        if out.tell() == 0:
            out.write("\t".join(COLUMNS) + "\n")
        out.write("\t".join(" ".join(cell.split()) for cell in row) + "\n")
    return row[0]


def rows():
    """All rows in order, each a dictionary. Raises ValueError with the line that is not one."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines()
    if lines[:1] != ["\t".join(COLUMNS)]:
        raise ValueError(f"{RESULTS.name}:1: the columns are not {' '.join(COLUMNS)}")
    table = []
    for i, line in enumerate(lines[1:], 2):
        cells = line.split("\t")
        if len(cells) != len(COLUMNS):
            raise ValueError(f"{RESULTS.name}:{i}: {len(cells)} columns, not {len(COLUMNS)}")
        row = dict(zip(COLUMNS, cells))
        try:
            for name in ("value", "low", "high", "n", "against_value", "ratio"):
                row[name] = float(row[name]) if row[name] or name == "value" else None
        except ValueError:
            raise ValueError(f"{RESULTS.name}:{i}: {name} is '{row[name]}', not a number") from None
        if row["verdict"] not in VERDICTS:
            raise ValueError(f"{RESULTS.name}:{i}: the verdict is '{row['verdict']}', not one of: {', '.join(VERDICTS)}")
        table.append(row)
    return table
