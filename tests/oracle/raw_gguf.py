# SPDX-License-Identifier: Apache-2.0
"""GGUF files taken apart and put together byte by byte, so that a test can write what no writer would: wrong counts, types, offsets, parts of splits."""
import dataclasses
import struct

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}


@dataclasses.dataclass
class Value:
    type: int
    value: object  # of an array: (element type, list)


@dataclasses.dataclass
class Tensor:
    name: str
    shape: list  # the contiguous dimension first
    type: int
    data: bytes
    offset: int = None  # None: behind the tensor before it


def text(s):
    raw = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(raw)) + raw


def encode(kind, value):
    if kind == STRING:
        return text(value)
    if kind == ARRAY:
        element, items = value
        if element in FORMATS:
            return struct.pack(f"<IQ{len(items)}{FORMATS[element]}", element, len(items), *items)
        return struct.pack("<IQ", element, len(items)) + b"".join(encode(element, item) for item in items)
    return struct.pack("<" + FORMATS[kind], value)


def key(name, value):
    return text(name) + struct.pack("<I", value.type) + encode(value.type, value.value)


def build(keys, tensors, alignment=32, version=3, n_keys=None, n_tensors=None):
    """The file's bytes. `keys`: dictionary of Value, or a list of pairs, where a key may be there twice; the two counts may lie."""
    pairs = list(keys.items()) if isinstance(keys, dict) else keys
    head = [b"GGUF" + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors, len(pairs) if n_keys is None else n_keys)]
    head += [key(name, value) for name, value in pairs]
    body, at = [], 0
    for t in tensors:
        offset = at if t.offset is None else t.offset
        head.append(text(t.name) + struct.pack(f"<I{len(t.shape)}QIQ", len(t.shape), *t.shape, t.type, offset))
        if t.offset is None:
            body += [t.data, bytes(-len(t.data) % alignment)]
            at += len(t.data) + len(body[-1])
    head = b"".join(head)
    return b"".join([head, bytes(-len(head) % alignment), *body])


def parse(raw):
    """Keys (dictionary of Value) and tensors of a valid file."""
    at = 0

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, raw, at)[0]
        at += struct.calcsize("<" + form)
        return value

    def take_text():
        nonlocal at
        n = take("Q")
        at += n
        return raw[at - n : at].decode()

    def take_value(kind):
        if kind == STRING:
            return take_text()
        if kind == ARRAY:
            element, n = take("I"), take("Q")
            return element, [take_value(element) for _ in range(n)]
        return take(FORMATS[kind])

    assert raw[:4] == b"GGUF"
    at = 8
    n_tensors, n_keys = take("Q"), take("Q")
    keys = {}
    for _ in range(n_keys):
        name, kind = take_text(), take("I")
        keys[name] = Value(kind, take_value(kind))
    infos = []
    for _ in range(n_tensors):
        name = take_text()
        shape = [take("Q") for _ in range(take("I"))]
        infos.append((name, shape, take("I"), take("Q")))
    alignment = keys["general.alignment"].value if "general.alignment" in keys else 32
    start = at + -at % alignment
    tensors = []
    for name, shape, kind, offset in infos:
        elements, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        for n in shape:
            size *= n
        tensors.append(Tensor(name, shape, kind, raw[start + offset : start + offset + size // elements]))
    return keys, tensors


def split_keys(no, count, n_tensors):
    return {"split.no": Value(U16, no), "split.count": Value(U16, count), "split.tensors.count": Value(I32, n_tensors)}


def part_name(prefix, no, count):
    return f"{prefix}-{no + 1:05d}-of-{count:05d}.gguf"


def split(keys, tensors, folder, prefix, cuts, alignments=()):
    """Writes parts whose tensors end before the indices `cuts`, the last with the rest. Part i is aligned to alignments[i], else to 32. The paths."""
    bounds = [0, *cuts, len(tensors)]
    count = len(bounds) - 1
    paths = []
    for i in range(count):
        alignment = alignments[i] if i < len(alignments) else 32
        own = {**(keys if i == 0 else {}), **split_keys(i, count, len(tensors))}
        if alignment != 32:
            own["general.alignment"] = Value(U32, alignment)
        paths.append(folder / part_name(prefix, i, count))
        paths[-1].write_bytes(build(own, tensors[bounds[i] : bounds[i + 1]], alignment))
    return paths
