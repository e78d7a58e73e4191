# SPDX-License-Identifier: Apache-2.0
"""A stored profile with round numbers, for this machine and the file system of a model, in a cache folder of a test."""
import os
import re
import subprocess

from command import weir_json

DISK, READ, ATTEND, DECODE, PREFILL, STAGE, ACTIVATE, IN_PASS = 1e9, 8e9, 4e9, 2e9, 1e11, 2e-6, 1e9, 0.8
TOGETHER = ((0.5, 0.25), (1, 0.75), (4, 0.1))  # reading over computing, what is lost of the longer one
FILE_SYSTEMS = {"ef53": "ext4", "58465342": "xfs", "9123683e": "btrfs", "2fc12fc1": "zfs", "f2f52010": "f2fs", "794c7630": "overlay", "1021994": "tmpfs", "6969": "nfs"}


class Profile:
    """For one thread: one rate for all formats, for all requests, and for few weights as for many."""

    def __init__(self, model, cache):
        plan = weir_json("plan", model, "-c", 64, env={"XDG_CACHE_HOME": cache})
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            cpu = next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
        kind = subprocess.run(["stat", "-f", "-c", "%t", str(model)], capture_output=True, text=True, check=True).stdout.strip()
        number = os.statvfs(model).f_fsid or os.stat(model).st_dev
        self.cache = cache
        self.names = [cpu, plan["isa"], str(plan["threads"]), f"{FILE_SYSTEMS.get(kind, kind)} {number:016x}"]
        self.lines = ["weir-profile 3", f"cpu {cpu}", f"level {plan['isa']}", f"file_system {self.names[3]}", f"cpus {plan['threads']}", "taken 1790000000"]
        self.lines += [f"disk {engine} {how} 1048576 8 {DISK:.0f}" for engine in ("uring", "pread") for how in ("direct", "buffered")]
        self.lines += ["threads 1", f"read 1 {READ:.0f}", f"attend 1 {ATTEND:.0f}", "attend_many 1 1000000000000", f"stage_ns 1 {STAGE * 1e9:.0f}",
                       f"activate {ACTIVATE:.0f}", f"in_pass_thousandths 1 {IN_PASS * 1e3:.0f}"]
        self.lines += [f"together {ratio * 1e3:.0f} {more * 1e3:.0f}" for ratio, more in TOGETHER]
        self.lines += [f"{key} {f} int8 1 {rate:.0f}" for f in weir_json("version")["formats"] for key, rate in (("decode", DECODE), ("prefill", PREFILL))]

    def store(self):
        """Writes it where weir looks for it; gives the environment for the command."""
        folder = self.cache / "weir" / "profiles"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / re.sub(r"[^A-Za-z0-9._]", "-", " ".join(self.names))).write_text("\n".join(self.lines) + "\n", encoding="ascii")
        return {"XDG_CACHE_HOME": self.cache}
