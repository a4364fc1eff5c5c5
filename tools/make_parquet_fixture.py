#!/usr/bin/env python3
"""Writes tests/data/parquet: small files by pyarrow for every feature that src/data/parquet.c reads, and some that it refuses.
usage: make_parquet_fixture.py OUT_DIR        (needs pyarrow from PyPI)

Row i of a file holds text(i), or null where nulls are on and i % 7 == 3; the C test has the same two rules, so no expected
output is stored. The file's name says what is in it: codec, page version, d(ictionary) or p(lain), n(ulls) or r(equired).
"""
import sys

import pyarrow as pa
import pyarrow.parquet as pq

ROWS, GROUP = 100, 48


def text(i):
    if i % 11 == 5:
        return ""
    return ("row %d says é\n" % (i % 40)) * (i % 5 + 1)


def table(n, nulls):
    column = [None if nulls and i % 7 == 3 else text(i) for i in range(n)]
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string(), nullable=nulls), pa.field("score", pa.float64())])
    return pa.table({"id": list(range(n)), "text": column, "score": [i / 3 for i in range(n)]}, schema=schema)


def write(out, name, t, **options):
    pq.write_table(t, out + "/" + name + ".parquet", store_schema=False, **options)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = sys.argv[1]
    for codec in ("none", "snappy", "gzip", "zstd"):
        for version in ("1.0", "2.0"):
            for dictionary in (True, False):
                for nulls in (True, False):
                    name = "%s-v%s-%s%s" % (codec, version[0], "d" if dictionary else "p", "n" if nulls else "r")
                    write(out, name, table(ROWS, nulls), compression=codec, data_page_version=version, use_dictionary=dictionary,
                          row_group_size=GROUP, data_page_size=700, write_page_checksum=version == "2.0")
    write(out, "empty", table(0, True))
    write(out, "one", table(1, False), write_page_checksum=True)
    write(out, "fallback", table(ROWS, False), dictionary_pagesize_limit=300, data_page_size=200, write_batch_size=10)
    write(out, "all-null", pa.table({"text": pa.array([None] * 20, pa.string())}))
    write(out, "nested", pa.table({"text": [{"a": "x"}], "id": [1]}))
    write(out, "list", pa.table({"text": [["x", "y"]], "id": [1]}))
    write(out, "number", pa.table({"text": [1, 2]}))
    write(out, "brotli", table(4, False), compression="brotli")
    write(out, "delta", table(4, False), use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
    nested = pa.table({"meta": [{"text": "no", "n": [1, 2]}, {"text": "no", "n": []}], "text": ["yes", "also"], "text2": ["no", "no"]})
    write(out, "beside-nested", nested)


if __name__ == "__main__":
    main()
