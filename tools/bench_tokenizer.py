#!/usr/bin/env python3
"""HF `tokenizers` beside idattn on one text: seconds to load, MB/s to encode it as one string and as lines, to decode. Not needed to build.

    pip install 'tokenizers==0.23.*'
    python tools/bench_tokenizer.py --idattn build/idattn --text FILE TOKENIZER.json...

One thread for both, but for the documents row, which has --threads. Figures are medians of --reps runs.
"""
import argparse
import json
import os
import statistics
import subprocess
import time

os.environ.setdefault("RAYON_NUM_THREADS", "1")


def timed(reps, fn):
    fn()
    seconds = []
    for _ in range(reps):
        begun = time.perf_counter()
        fn()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def theirs(path, text, reps):
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(path)
    tok.encode_special_tokens = True
    ids = tok.encode(text, add_special_tokens=False).ids
    lines = text.splitlines(keepends=True)
    return {"load": timed(reps, lambda: Tokenizer.from_file(path)),
            "encode one string": timed(reps, lambda: tok.encode(text, add_special_tokens=False)),
            "encode documents": timed(reps, lambda: tok.encode_batch(lines, add_special_tokens=False)),
            "decode": timed(reps, lambda: tok.decode(ids, skip_special_tokens=False))}, len(ids)


def main():
    arg = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arg.add_argument("--idattn", required=True)
    arg.add_argument("--text", required=True)
    arg.add_argument("--threads", type=int, default=2)
    arg.add_argument("--reps", type=int, default=3)
    arg.add_argument("tokenizer", nargs="+")
    opt = arg.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(opt.threads)
    with open(opt.text, encoding="utf-8", errors="replace", newline="") as f:
        text = f.read()
    size = len(text.encode("utf-8")) / 1e6
    for path in opt.tokenizer:
        hf, n = theirs(path, text, opt.reps)
        run = subprocess.run([opt.idattn, "bench", "tokenizer", f"tokenizer={path}", f"text={opt.text}", f"reps={opt.reps}", "--json",
                              "--threads", str(opt.threads)], stdout=subprocess.PIPE, check=True)
        print(f"{path}: {size:.1f} MB, {n} ids")
        for row in json.loads(run.stdout)["rows"]:
            us, them, rate = row["seconds"], hf[row["what"]], row["what"] != "load"
            figures = f"idattn {size / us:8.1f} MB/s   HF {size / them:8.1f} MB/s" if rate else f"idattn {us:8.3f} s      HF {them:8.3f} s   "
            same = "" if row["what"] != "encode one string" or row["ids"] == n else "   IDS DIFFER"
            print(f"  {row['what']:20s} {row['threads']} threads   {figures}   {them / us:5.1f}x{same}")


if __name__ == "__main__":
    main()
