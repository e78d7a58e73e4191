# SPDX-License-Identifier: Apache-2.0
"""Memory cgroups, version 1 or 2, without swap, and cgroups that read slowly. Only folders of our own are made, and settings of existing ones are left alone."""
import contextlib
import os
import pathlib
import time

count = 0


def places(first="memory", second="memory"):
    """Folders under which a cgroup with this controller of version 1 or 2 may be made: (version, folder)."""
    own = dict()
    for line in pathlib.Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        own.update({name: path for name in controllers.split(",")})
    for line in pathlib.Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        before, after = line.split(" - ")
        root, mount = before.split()[3:5]
        kind, _, options = after.split(maxsplit=2)
        version = 1 if kind == "cgroup" and first in options.split(",") else 2 if kind == "cgroup2" else 0
        path = own.get(first if version == 1 else "")
        if not version or path is None:
            continue
        inside = os.path.relpath(path, root) if root != "/" else path.lstrip("/")
        here = pathlib.Path(mount) / ("" if inside.startswith("..") else inside)
        # Version 2: a group that has processes cannot hand the controller down, its parent may.
        for folder in (here, here.parent) if version == 2 and here != pathlib.Path(mount) else (here,):
            if version == 1 or second in (folder / "cgroup.subtree_control").read_text(encoding="ascii").split():
                yield version, folder


def write(path, value):
    path.write_text(str(value), encoding="ascii")


def limit_memory(group, version, limit):
    write(group / ("memory.max" if version == 2 else "memory.limit_in_bytes"), limit)
    if version == 2 and (group / "memory.swap.max").exists():
        write(group / "memory.swap.max", 0)
    if version == 1:
        write(group / "memory.swappiness", 0)
        if (group / "memory.memsw.limit_in_bytes").exists():
            write(group / "memory.memsw.limit_in_bytes", limit)


def limit_reads(group, version, device_and_rate):
    device, rate = device_and_rate
    device = f"{os.major(device)}:{os.minor(device)}"
    if version == 2:
        write(group / "io.max", f"{device} rbps={rate}")
    else:
        write(group / "blkio.throttle.read_bps_device", f"{device} {rate}")


def make(controllers, set_limit, limit):
    """A new cgroup with this limit: (folder, None), or (None, why there is none)."""
    global count
    why = f"no {controllers[1]} controller is mounted for this process"
    for version, folder in places(*controllers):
        count += 1
        group = folder / f"weir-test-{os.getpid()}-{count}"
        try:
            group.mkdir()
        except OSError as e:
            why = f"{folder}: {e.strerror}"
            continue
        try:
            set_limit(group, version, limit)
            return group, None
        except OSError as e:
            why = f"{group}: {e.strerror}"
            remove(group)
    return None, why


def remove(group):
    for _ in range(50):  # the kernel lets go of an ended process a little later
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.02)
    group.rmdir()


@contextlib.contextmanager
def memory_cgroup(limit):
    """Gives (folder, None) or (None, reason)."""
    group, why = make(("memory", "memory"), limit_memory, limit)
    try:
        yield group, why
    finally:
        if group:
            remove(group)


@contextlib.contextmanager
def slow_disk_cgroup(path, bytes_per_second):
    """Direct reads from the disk of `path` are as slow as this: (folder, None) or (None, reason)."""
    group, why = make(("blkio", "io"), limit_reads, (os.stat(path).st_dev, bytes_per_second))
    try:
        yield group, why
    finally:
        if group:
            remove(group)


def kills(group):
    """How often the kernel killed for memory in this group."""
    for name in ("memory.events", "memory.oom_control"):
        path = group / name
        if path.exists():
            return dict(line.split() for line in path.read_text(encoding="ascii").splitlines()).get("oom_kill")
    return None


def cache_bytes(group):
    """File pages that are charged to this group."""
    values = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    return int(values.get("total_cache", values.get("cache", values.get("file", 0))))


def fake_v2(folder, limits):
    """Words in front of a command that then finds itself in a version 2 tree made of plain files: {group: text of memory.max}; the last is its own.

    The files are bound over the process's own /proc files in a mount namespace of its own, so nothing else sees them.
    """
    tree = folder / "tree"
    for group, text in limits.items():
        (tree / group).mkdir(parents=True, exist_ok=True)
        write(tree / group / "memory.max", text)
        write(tree / group / "memory.current", 20 << 20)
        write(tree / group / "memory.stat", f"anon {12 << 20}\ninactive_file {4 << 20}\nactive_file {4 << 20}\nslab_reclaimable 0\n")
    write(folder / "cgroup", f"0::/{list(limits)[-1]}\n")
    write(folder / "mountinfo", f"31 23 0:28 / {tree} rw,nosuid - cgroup2 cgroup2 rw\n")
    binds = f"mount --bind '{folder}/cgroup' /proc/$$/cgroup && mount --bind '{folder}/mountinfo' /proc/$$/mountinfo"
    return ["unshare", "-m", "sh", "-c", f'{binds} && exec "$@"', "sh"]
