"""Writes headers, good and broken, and what the real package says of each:
one line of JSON with the file in hex and its tensors, or null."""

import json
import random
import struct
import sys

import safetensors

rng = random.Random(int(sys.argv[1]))
DTYPES = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
          "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
          "C64": 64, "F64": 64, "I64": 64, "U64": 64}


def header():
    items, at = {}, 0
    for i in range(rng.randint(0, 5)):
        dtype = rng.choice(list(DTYPES))
        shape = [rng.randint(0, 4) for _ in range(rng.randint(0, 3))]
        bits = DTYPES[dtype]
        for n in shape:
            bits *= n
        if bits % 8 and rng.random() < 0.9:
            shape, bits = [8], 8 * DTYPES[dtype]
        items[rng.choice(["w", "é", "a.b", "\n", "😀"]) + str(i)] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + bits // 8]}
        at += bits // 8
    pairs = list(items.items())
    rng.shuffle(pairs)
    if rng.random() < 0.3:
        pairs.append(("__metadata__", {"format": "pt"}))
    return json.dumps(dict(pairs), ensure_ascii=rng.random() < 0.5).encode() + b" " * rng.randint(0, 3), at


for _ in range(4000):
    raw, size = header()
    raw = bytearray(raw)
    for _ in range(rng.choice([0, 1, 1, 2])):
        raw[rng.randrange(len(raw))] = rng.choice(b'0123456789"{}[],:aU8F \\\xff\n')
    file = struct.pack("<Q", len(raw)) + bytes(raw) + bytes(max(0, size + rng.choice([0, 0, 0, 0, 1, -1])))
    try:
        found = {name: [t["dtype"], t["shape"], len(t["data"])] for name, t in safetensors.deserialize(file)}
    except safetensors.SafetensorError:
        found = None
    print(json.dumps({"file": file.hex(), "tensors": found}))
