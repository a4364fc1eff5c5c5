#!/usr/bin/env python3
"""How many files name a mixer, an op, an option, a weight type, a device or a format: the price of the next one.

usage: tools/count_files.py [-v] [NAME...]        all rows of TABLE, or those named; -v lists the files

What is counted: the files of git ls-files in which one of the row's identifiers stands, in three groups: src and
include; tests, bench and tools; docs and presets (with README.md and CONTRIBUTING.md). Comments of C, CUDA, make and
shell files are left out first: a file that only mentions a thing need not change with it. Strings count, since help and
messages must change too. Data, fixtures and corpora do not count.
A file is "own" when its name, or the folder it lies in, is that of the thing: it would be new for the next one. The
others are "shared": they would have to be edited. Shared files outside a table or a list are what to mend first
(CONTRIBUTING.md); the last column says how many the structure aims at, edited and new, in src and include.

Counts are an upper bound of the edits: a name may stand in a file as an example, as the default mixer does in many.
"""
import os
import re
import subprocess
import sys

# kind, name, identifiers (a regular expression), own files (one too), target
S4D = r"(?<!BASIS_)S4D(?!_(INV|LIN|LEGS))|s4d(?!-(inv|lin|legs))(?!_(inv|lin|legs))"
TABLE = [
    ("mixer", "s4d", S4D, r"(^|[/_])s4d", "2 edited + 6 new, 1 doc"),
    ("mixer", "interdomain", r"interdomain|INTERDOMAIN", r"(^|[/_])interdomain", "2 edited + 6 new, 1 doc"),
    ("mixer", "softmax", r"softmax|SOFTMAX", r"(^|[/_])softmax", "2 edited + 6 new, 1 doc"),
    ("mixer", "single-query", r"single[-_]query|SINGLE_QUERY", r"(^|[/_])single_query", "2 edited + 6 new, 1 doc"),
    ("op", "headnorm", r"headnorm", r"(^|[/_])headnorm", "2 edited + 5 new, 1 doc"),
    ("op", "rmsnorm", r"rmsnorm", r"(^|[/_])rmsnorm", "2 edited + 5 new, 1 doc"),
    ("op", "swiglu", r"swiglu", r"(^|[/_])swiglu", "2 edited + 5 new, 1 doc"),
    ("training option", "clip", r"(?<![-\w])clip(?![-\w])|--clip", r"^$", "1 row + use"),
    ("training option", "ssm_lr_max", r"ssm[-_]lr[-_]max", r"^$", "1 row + use"),
    ("model key", "l2_eps", r"l2_eps", r"^$", "1 row + use"),
    ("model key", "output_norm", r"output_norm", r"^$", "1 row + use"),
    ("sample option", "min_p", r"min[-_]p(?!\w)", r"^$", "1 row + use"),
    ("weight type", "bf16", r"bf16|BF16", r"(^|[/_])bf16", "1 row + its conversions"),
    ("device", "cuda", r"cuda|CUDA", r"(^|[/_])cuda", "2 edited + a folder"),
    ("shard format", "nanogpt", r"nanogpt|NANOGPT", r"(^|[/_])nanogpt", "1 edited + 1 new + fuzz"),
    ("text source", "parquet", r"parquet|PARQUET", r"(^|[/_])parquet", "1 edited + 1 new + fuzz"),
    ("weight format", "safetensors", r"safetensors", r"(^|[/_])safetensors", "2 edited + 2 new"),
]
GROUPS = [
    ("src, include", r"^(src|include)/"),
    ("tests, bench, tools", r"^(tests|bench|tools)/"),
    ("docs, presets", r"^(docs|presets)/|^(README|CONTRIBUTING)\.md$"),
]
LEFT_OUT = r"^tests/data/|^tests/fuzz/corpus/|^tools/count_files\.py$|^docs/perf-log\.md$|\.(png|svg|csv|bin|safetensors)$"
C = (".c", ".h", ".cu", ".cuh")
HASH = (".sh", ".mk", ".py")


def code(path):
    """The text of a file without its comments."""
    with open(path, encoding="utf-8", errors="replace") as f:
        text = f.read()
    if path.endswith(C):
        # strings first, so that a comment mark inside one is no comment
        token = re.compile(r'("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')|/\*.*?\*/|//[^\n]*', re.S)
        return token.sub(lambda m: m.group(1) or " ", text)
    if path.endswith(HASH) or os.path.basename(path) == "Makefile":
        return re.sub(r"(?m)(^|\s)#\s[^\n]*", " ", text)
    return text


def main(args):
    verbose = "-v" in args
    names = [a for a in args if a != "-v"]
    unknown = [n for n in names if n not in [row[1] for row in TABLE]]
    if unknown or "-h" in args or "--help" in args:
        sys.exit(__doc__)
    os.chdir(subprocess.check_output(["git", "-C", os.path.dirname(os.path.abspath(__file__)), "rev-parse",
                                      "--show-toplevel"], text=True).strip())
    files = subprocess.check_output(["git", "ls-files"], text=True).split("\n")
    files = [f for f in files if f and os.path.isfile(f) and not re.search(LEFT_OUT, f)]
    texts = {f: code(f) for f in files if any(re.search(g, f) for _, g in GROUPS)}

    print(f"{'':16} {'':13}" + "".join(f"{name:>23}" for name, _ in GROUPS) + "   target in src, include")
    print(f"{'':16} {'':13}" + f"{'own + shared':>23}" * len(GROUPS))
    for kind, name, identifiers, own, target in TABLE:
        if names and name not in names:
            continue
        seen = re.compile(identifiers)
        found = [[f for f in sorted(texts) if re.search(group, f) and seen.search(texts[f])] for _, group in GROUPS]
        is_own = [[f for f in part if re.search(own, f)] for part in found]
        cells = "".join(f"{f'{len(o)} + {len(f) - len(o)}':>23}" for f, o in zip(found, is_own))
        print(f"{kind:16} {name:13}{cells}   {target}")
        if verbose:
            for (group, _), part, o in zip(GROUPS, found, is_own):
                for f in part:
                    print(f"      {'own   ' if f in o else 'shared'} {f}")


main(sys.argv[1:])
