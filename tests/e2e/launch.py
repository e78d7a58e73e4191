# SPDX-License-Identifier: Apache-2.0
"""launch.py JSON: runs one command and writes to a descriptor what the system counted for it.

A process of its own because a child inherits its parent's largest resident size: this one stays near 10 MB, pytest does not.
"""
import json
import os
import resource
import sys


def main():
    how = json.loads(sys.argv[1])
    child = os.fork()
    if child == 0:
        os.close(how["report"])
        if how["cgroup"]:
            with open(os.path.join(how["cgroup"], "cgroup.procs"), "w", encoding="ascii") as procs:
                procs.write(str(os.getpid()))
        if how["stack"]:
            resource.setrlimit(resource.RLIMIT_STACK, (how["stack"], how["stack"]))
        if how["address_space"]:
            resource.setrlimit(resource.RLIMIT_AS, (how["address_space"], how["address_space"]))
        os.execvp(how["command"][0], how["command"])
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    with open(f"/proc/{child}/io", encoding="ascii") as lines:  # of the ended process, not yet reaped
        io = dict(line.split(": ") for line in lines.read().splitlines())
    _, status, usage = os.wait4(child, 0)
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        own = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    report = {
        "code": os.waitstatus_to_exitcode(status),
        "max_rss": usage.ru_maxrss * 1024,
        "max_rss_at_least": own * 1024,  # this process, as a copy of which the child began
        "read_bytes": int(io["read_bytes"]),
        "read_chars": int(io["rchar"]),
        "write_bytes": int(io["write_bytes"]),
        "write_chars": int(io["wchar"]),
        "cpu": usage.ru_utime + usage.ru_stime,
    }
    with os.fdopen(how["report"], "w") as out:
        json.dump(report, out)


main()
