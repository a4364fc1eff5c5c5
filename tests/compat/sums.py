#!/usr/bin/env python3
"""A short account of the tensors of safetensors files, and the comparison of two accounts.

usage: sums.py write FILE...
         one line a tensor: name, number of elements, norm, and two sums with signs from a fixed sequence
       sums.py compare TOLERANCE OLD NEW
         exit 0 when both name the same tensors, in the same order and sizes, and every figure differs by at most
         TOLERANCE of the tensor's norm; prints the worst

A sum with random signs changes by about the norm of the change, so two of them see a change of any elements.
"""
import array
import json
import math
import random
import struct
import sys

SUMS = 2


def tensors(path):
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        body = f.read()
    head.pop("__metadata__", None)
    for name, t in head.items():
        a = array.array({"F32": "f", "F64": "d"}[t["dtype"]])
        begin, end = t["data_offsets"]
        a.frombytes(body[begin:end])
        yield name, a


def write(paths):
    rng = random.Random(20240501)
    signs = [[1 - 2 * (bits >> k & 1) for k in range(SUMS)] for bits in (rng.getrandbits(SUMS) for _ in range(1 << 16))]
    for path in paths:
        for name, a in tensors(path):
            figures = [math.sqrt(math.fsum(x * x for x in a))]
            figures += [math.fsum(x * s[k] for x, s in zip(a, signs)) for k in range(SUMS)]
            print(name, len(a), *(f"{x:.7g}" for x in figures))


def compare(tolerance, old, new):
    rows = [[line.split() for line in open(path)] for path in (old, new)]
    if [r[:2] for r in rows[0]] != [r[:2] for r in rows[1]]:
        sys.exit("the tensors are others: their names, order or sizes")
    worst, where = 0.0, "-"
    for a, b in zip(*rows):
        scale = float(a[2]) or 1.0
        for x, y in zip(a[2:], b[2:]):
            d = abs(float(x) - float(y)) / scale
            if not d <= worst:  # NaN is worst
                worst, where = d, a[0]
    print(f"worst {worst:.2e} of the norm, in {where}")
    sys.exit(0 if worst <= tolerance else 1)


if len(sys.argv) > 2 and sys.argv[1] == "write":
    write(sys.argv[2:])
elif len(sys.argv) == 5 and sys.argv[1] == "compare":
    compare(float(sys.argv[2]), sys.argv[3], sys.argv[4])
else:
    sys.exit(__doc__)
