# SPDX-License-Identifier: Apache-2.0
"""Reads and writes saved contexts by docs/CONTEXT_FILE.md and nothing else; reading raises ValueError where a file does not hold what that says.

As a program: context_file.py FILE prints what is in it; context_file.py --corpus FOLDER writes the seeds of the fuzz target.
"""
import io
import os
import struct
import sys

import numpy as np


def _table():
    t = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        t = np.where(t & 1, (t >> 1) ^ np.uint32(0x82F63B78), t >> 1).astype(np.uint32)
    return t


TABLE = _table()
CHUNK = 4096


def _bytewise(data, register):
    for byte in data:
        register = (register >> 8) ^ int(TABLE[(register ^ byte) & 255])
    return register


def _shift():
    """The register behind CHUNK zero bytes, as a table for each of its four bytes: the register is linear."""
    basis = np.array([1 << i for i in range(32)], dtype=np.uint32)
    for _ in range(CHUNK):
        basis = (basis >> 8) ^ TABLE[basis & 255]
    tables = np.zeros((4, 256), dtype=np.uint32)
    for k in range(4):
        for i in range(256):
            for bit in range(8):
                if i >> bit & 1:
                    tables[k, i] ^= basis[8 * k + bit]
    return tables.tolist()


SHIFT = _shift()


def crc32c(data, start=0):
    register = start ^ 0xFFFFFFFF
    whole = len(data) // CHUNK
    if whole:
        chunks = np.frombuffer(data, dtype=np.uint8, count=whole * CHUNK).reshape(whole, CHUNK)
        parts = np.zeros(whole, dtype=np.uint32)
        for i in range(CHUNK):
            parts = (parts >> 8) ^ TABLE[(parts ^ chunks[:, i]) & 255]
        for part in parts.tolist():
            register = SHIFT[0][register & 255] ^ SHIFT[1][register >> 8 & 255] ^ SHIFT[2][register >> 16 & 255] ^ SHIFT[3][register >> 24] ^ part
    return _bytewise(data[whole * CHUNK:], register) ^ 0xFFFFFFFF


def need(condition, what):
    if not condition:
        raise ValueError(what)


def sealed(data, what):
    (crc,) = struct.unpack_from("<I", data, len(data) - 4)
    need(crc32c(data[:-4]) == crc, f"{what}: crc")
    return crc


KV_TYPES = ("f16", "f32", "q8_0", "k8v4")


class ContextFile:
    """about: the header's numbers by name; ids; rows and crcs by group; weights: (id, known, crc) of each; block(tile, layer)."""

    def __init__(self, path):
        self.data = open(path, "rb").read()
        header = self.data[:4096]
        need(len(header) == 4096 and header[:8] == b"\x89WKV\r\n\x1a\n", "header: magic")
        previous = sealed(header, "header")
        names = ("version header_bytes numerics kv_type precise n_layer n_head_kv head_dim tile block_bytes record_bytes n_ctx_trained n_vocab n_weights table_bytes "
                 "tokenizer graph").split()
        self.about = a = dict(zip(names, struct.unpack_from("<17I", header, 8)))
        need(a["version"] == 1 and a["header_bytes"] == 4096 and a["tile"] == 256, "header: version, tile")
        need(a["block_bytes"] % 4096 == 0 and a["record_bytes"] == -(-(1060 + 4 * a["n_layer"]) // 4096) * 4096, "header: block, record")
        need(a["table_bytes"] == -(-16 * a["n_weights"] // 4096) * 4096, "header: table")
        need(not any(header[76:96]) and not any(header[256:4092]), "header: not zero")
        a["arch"] = header[96:128].split(b"\0")[0].decode()
        a["model"] = header[128:256].split(b"\0")[0].decode()

        state = self.data[4096:4160]
        sealed(state, "state")
        need(state[:4] == b"WKST", "state: magic")
        self.commits, self.n_full, self.n_tail, self.tail_place, last, tail = struct.unpack_from("<Q5I", state, 8)
        self.start = 8192 + a["table_bytes"]
        self.group_bytes = a["n_layer"] * a["block_bytes"] + a["record_bytes"]
        need(len(self.data) >= self.start + (2 + self.n_full) * self.group_bytes, "truncated")

        self.weights = []
        for i in range(a["n_weights"]):
            entry = self.data[8192 + 16 * i:8208 + 16 * i]
            identity, known, crc, own = struct.unpack("<4I", entry)
            need(own == crc32c(entry[:12], i) and known <= 1, f"weight {i}")
            self.weights.append((identity, known, crc))

        self.ids, self.rows, self.crcs = [], [], []
        for t in range(self.n_full + (self.n_tail > 0)):
            at = self.group_at(t) + a["n_layer"] * a["block_bytes"]
            record = self.data[at:at + a["record_bytes"]]
            own = sealed(record, f"record {t}")
            magic, tile, n, before, rows = struct.unpack_from("<4s4I", record)
            need(magic == b"WGRP" and tile == t and n == (256 if t < self.n_full else self.n_tail), f"record {t}")
            need(before == previous, f"record {t}: not behind the one before")
            need(own == (tail if t == self.n_full else own), "tail: not the state's")
            if t < self.n_full:
                previous = own
            self.ids += struct.unpack_from(f"<{n}I", record, 32)
            self.rows.append(rows)
            self.crcs.append(struct.unpack_from(f"<{a['n_layer']}I", record, 1056))
        need(previous == last, "last record: not the state's")

    def group_at(self, tile):
        return self.start + (2 + tile if tile < self.n_full else self.tail_place) * self.group_bytes

    def block(self, tile, layer):
        at = self.group_at(tile) + layer * self.about["block_bytes"]
        data = self.data[at:at + self.about["block_bytes"]]
        need(crc32c(data) == self.crcs[tile][layer], f"block of group {tile}, layer {layer}: crc")
        return data

    def check(self):
        for tile in range(len(self.crcs)):
            for layer in range(self.about["n_layer"]):
                self.block(tile, layer)

    def keys_values(self, layer):
        """f16 and f32: keys and values [head][position][dimension] of all tokens."""
        heads, dim = self.about["n_head_kv"], self.about["head_dim"]
        kind = {"f16": "<f2", "f32": "<f4"}[KV_TYPES[self.about["kv_type"]]]
        keys, values = [], []
        for tile in range(len(self.crcs)):
            flat = np.frombuffer(self.block(tile, layer), dtype=kind, count=2 * heads * 256 * dim)
            keys.append(flat[:heads * 256 * dim].reshape(heads, 16, dim, 16).transpose(0, 1, 3, 2).reshape(heads, 256, dim))
            values.append(flat[heads * 256 * dim:].reshape(heads, 256, dim))
        return (np.concatenate(part, axis=1)[:, :len(self.ids)] for part in (keys, values))


def seal(data):
    return data[:-4] + struct.pack("<I", crc32c(data[:-4]))


def last_crc(data):
    return struct.unpack("<I", data[-4:])[0]


def page(n):
    return -(-n // 4096) * 4096


def pieces(ids, n_layer=1, block_bytes=4096, n_weights=3, tail_place=0, commits=1, version=1, **about):
    """A file with these tokens, whose blocks are a pattern, and of no model, as a list of (offset, bytes) with zeros between them; the crcs of blocks of more
    than 1 MiB are made up. `about`: other numbers and names of the header."""
    a = {"numerics": 2, "kv_type": 0, "precise": 0, "n_layer": n_layer, "n_head_kv": 1, "head_dim": 4, "tile": 256, "block_bytes": block_bytes,
         "record_bytes": page(1060 + 4 * n_layer), "n_ctx_trained": 4096, "n_vocab": 1000, "n_weights": n_weights, "table_bytes": page(16 * n_weights),
         "tokenizer": 7, "graph": 8, "arch": b"llama", "model": b"some.gguf", **about}
    arch, model = a.pop("arch"), a.pop("model")
    header = seal(b"\x89WKV\r\n\x1a\n" + struct.pack("<17I", version, 4096, *a.values()) + bytes(20) + arch.ljust(32, b"\0") + model.ljust(128, b"\0") + bytes(3840))
    entries = [struct.pack("<3I", 77 * i, i % 2, 99 * i * (i % 2)) for i in range(n_weights)]
    table = b"".join(entry + struct.pack("<I", crc32c(entry, i)) for i, entry in enumerate(entries)).ljust(a["table_bytes"], b"\0")
    n_full, n_tail = divmod(len(ids), 256)
    start, group = 8192 + a["table_bytes"], n_layer * block_bytes + a["record_bytes"]
    last, tail, groups = last_crc(header), 0, []
    for t in range(n_full + (n_tail > 0)):
        here = ids[256 * t:256 * t + 256]
        crcs = [crc32c(bytes([t, il]).ljust(block_bytes, b"\0")) if block_bytes <= 1 << 20 else 5 for il in range(n_layer)]
        record = struct.pack("<4s4I", b"WGRP", t, len(here), last, 5 * t).ljust(32, b"\0") + struct.pack(f"<{len(here)}I", *here).ljust(1024, b"\0")
        record = seal((record + struct.pack(f"<{n_layer}I", *crcs)).ljust(a["record_bytes"], b"\0"))
        at = start + (2 + t if t < n_full else tail_place) * group
        groups += [(at + il * block_bytes, bytes([t, il])) for il in range(n_layer)] + [(at + n_layer * block_bytes, record)]
        if t < n_full:
            last = last_crc(record)
        else:
            tail = last_crc(record)
    state = seal(struct.pack("<4sIQ5I", b"WKST", 0, commits, n_full, n_tail, tail_place, last, tail).ljust(64, b"\0"))
    end = start + (2 + n_full) * group
    return [(end - 1, b"\0"), (0, header), (4096, state), (8192, table), *groups]  # the end first: a record may reach it


def write(*args, **how):
    """The bytes of such a file."""
    file = io.BytesIO()
    for at, data in pieces(*args, **how):
        file.seek(at)
        file.write(data)
    return file.getvalue()


# Of the fuzz target's first byte: what is sealed again after a change.
MEND = {"nothing": 0, "header": 1, "table": 2, "records": 4, "blocks": 8, "state": 16, "all": 31}


def seeds():
    ids = [3 * i % 1000 for i in range(600)]
    for mend, flags in MEND.items():
        yield f"tail-{mend}", flags, write(ids[:40])
    yield "full", 31, write(ids[:256])
    yield "full-and-tail", 31, write(ids[:300], tail_place=1)
    yield "layers", 31, write(ids[:270], n_layer=2, n_weights=0)
    yield "empty", 31, write([])
    yield "large-block", 1, write([])[:44] + struct.pack("<I", 0xFFFFF000) + write([])[48:]
    yield "many-layers", 1, write([])[:28] + struct.pack("<I", 65536) + write([])[32:]
    yield "version", 1, write(ids[:5], version=2)
    yield "names", 1, write(ids[:5], arch=b"\xff\xfe\x1b[2J", model=b"\x1b]0;x\x07\xc3")
    yield "cut", 31, write(ids[:600])[:-5000]


if __name__ == "__main__":
    if sys.argv[1] == "--corpus":
        for name, flags, data in seeds():
            with open(os.path.join(sys.argv[2], name), "wb") as file:
                file.write(bytes([flags]) + data)
        sys.exit()
    context = ContextFile(sys.argv[1])
    context.check()
    print(context.about, len(context.ids), "tokens,", context.commits, "commits")
