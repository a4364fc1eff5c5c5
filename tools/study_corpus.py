#!/usr/bin/env python3
"""Turn Debian packages into English prose for language-model training.

Standard library only.  Two steps:

  study_corpus.py extract OUTDIR FILE.deb...   one OUTDIR/PACKAGE.txt per package
  study_corpus.py merge OUT.txt VALID.txt STATS.tsv EXTRACTED.txt...

Text form: one paragraph a line, an empty line between documents.  `extract`
keeps only paragraphs that read like English sentences; `merge` drops every
paragraph that was already seen (digits, case and punctuation ignored) and puts
one document in 200, chosen by hash, into VALID.txt instead of OUT.txt.
"""
import gzip, hashlib, html, io, lzma, multiprocessing, os, re, struct, subprocess, sys, tarfile, zlib

STOP = frozenset("""the of and to a in is that it for be as with are this by on or an not from
at which can will if was you have but all has his he they we their when one there use used
i my me her she him had were been would what so no do""".split())
FOREIGN = re.compile(r"(^|[/._-])(de|fr|es|it|ja|ko|ru|nl|pl|pt|cs|da|fi|hu|sv|tr|uk|zh|ca|el|ro|vi|id|nb|sk|sl|bg|ar|he|fa|lt|gl|eu|sr|hr)"
                     r"([-_.@][A-Za-z]{2,8})?(/|\.html?|\.txt|\.xml|\.page|$)")
SKIP = re.compile(r"(genindex|py-modindex|searchindex|/search\.html|-members\.html|_source\.html|/class-use/"
                  r"|package-tree|package-use|overview-tree|index-files|index-all|src-html|/dir_[0-9a-f]{32}"
                  r"|/functions?_|/globals_|/hierarchy|/annotated|/classes\.html|/inherits|/namespacemembers"
                  r"|/files\.html|doc-index|/contents\.html|changelog|/copyright$|licen[sc]e|/COPYING|/AUTHORS|/THANKS|/CREDITS"
                  r"|/_static/|/_modules/|\.js$|\.css$|\.svg$|\.png$|\.jpe?g$|\.gif$|\.pdf|\.ps(\.gz)?$)", re.I)
BLOCK = re.compile(r"</?(p|div|li|ul|ol|dl|dt|dd|tr|td|th|table|h[1-6]|br\s*/?|hr|section|article|blockquote|body|title|"
                   r"para|simpara|listitem|entry|term|item|note|desc|center|formalpara|caption|figcaption|details|summary)\b[^>]*>", re.I)
DROP = re.compile(r"<!--.*?-->|<(script|style|head|nav|pre|svg|math|programlisting|screen|synopsis|footer|select|object|"
                  r"form|listing|code-block|info|credit|option)\b[^>]*>.*?</\1\s*>", re.I | re.S)
TAG = re.compile(r"<[^>]*>")
WS = re.compile(r"\s+")
WORD = re.compile(r"[A-Za-z']+")
PUNCT = re.compile(r"[^a-z]+")


def prose(p, loose):
    """True when the paragraph reads like English sentences."""
    n = len(p)
    if n < (20 if loose else 60) or n > 20000:
        return False
    words = WORD.findall(p)
    k = len(words)
    if k < (4 if loose else 10):
        return False
    if sum(map(len, words)) + p.count(" ") < (0.86 if not loose else 0.8) * n:
        return False
    if loose:
        return True
    hits = [w for w in map(str.lower, words) if w in STOP]
    if len(hits) < 0.2 * k or len(set(hits)) < 3:
        return False
    if p.count("_") + p.count("::") * 3 + p.count("(") + p.count("/") > 0.02 * n + 1:
        return False
    if not re.search(r"[.!?:;][\"')\]]*( |$)", p) or p.count(" -- ") > 2 or p.startswith(("--", "/*", "//", "#")):
        return False
    return max(map(len, words)) < 30 and sum(1 for w in words if w.isupper() and len(w) > 1) < 0.25 * k


def from_html(t, path):
    t = DROP.sub("\n\n", t)
    t = re.sub(r"\s+", " ", t)
    t = BLOCK.sub("\n", t)
    t = html.unescape(TAG.sub("", t))
    return t.split("\n")


def from_text(t, path):
    """Paragraphs split at empty lines; indented code, rules and markup lines go."""
    out = []
    for para in re.split(r"\n[ \t]*\n", t.replace("\r", "").expandtabs()):
        lines = [l for l in para.split("\n") if l.strip() and not re.match(r"^\s*([-=~^*#+_.|]{3,}|\.\. |:[a-z]+:|@[a-z]+|\* .*::)", l)]
        if not lines:
            continue
        ind = [len(l) - len(l.lstrip()) for l in lines]
        s = " ".join(l.strip() for l in lines)
        s = re.sub(r":[a-zA-Z:+-]+:`([^`<]*)(<[^>]*>)?`", r"\1", s)
        s = re.sub(r"`+([^`]*)`+_*", r"\1", s)
        s = re.sub(r"(?<![\w*])\*{1,2}([^*]+)\*{1,2}(?![\w*])", r"\1", s)
        s = re.sub(r"(?<=[a-z])- (?=[a-z])", "-", s)
        out.append(s)
    return out


def from_pod(t, path):
    out = []
    for para in re.split(r"\n\s*\n", t):
        if para.startswith((" ", "\t", "=")):
            continue
        for _ in range(3):
            para = re.sub(r"[A-Z]<([^<>]*)>", lambda m: m.group(1).split("|")[0], para)
        out.append(para)
    return out


def from_roff(t, path):
    out, cur, skip = [], [], False
    for l in t.split("\n"):
        if re.match(r"\.\s*(nf|EX|Bd|DS)\b", l):
            skip = True
        elif re.match(r"\.\s*(fi|EE|Ed|DE)\b", l):
            skip = False
        elif skip or l.startswith(("'", '.\\"')):
            continue
        elif re.match(r"\.(B|I|BR|IR|RB|RI|BI|IB|SM|SB|Nm|Fl|Ar|Pa|Xr|Em|Sy|Ic|Cm|Dv|Dq|Sq|Fn|Va|Ev|Er|Li|Ql|Pq|Fx)\b", l):
            w = l.split(None, 1)
            if len(w) > 1:
                sep = "" if re.match(r"\.(BR|IR|RB|RI|BI|IB)\b", l) else " "
                cur.append(sep.join(re.findall(r'"[^"]*"|\S+', w[1])).replace('"', ""))
        elif l.startswith("."):
            if cur:
                out.append(" ".join(cur))
                cur = []
        elif l.strip():
            cur.append(l)
        elif cur:
            out.append(" ".join(cur))
            cur = []
    if cur:
        out.append(" ".join(cur))
    return [re.sub(r"\\f[A-Z]|\\f\(..|\\f\[[^]]*\]|\\[&/,%|^]|\\s[-+]?\d+", "",
            p.replace("\\-", "-").replace("\\(aq", "'").replace("\\(lq", '"').replace("\\(rq", '"')
             .replace("\\(bu", "").replace("\\(em", " -- ").replace("\\e", "\\")) for p in out]


def from_sword(index, data):
    """SWORD zText, zCom: index = blocks (offset, size, raw size); a block is a chapter or book of OSIS text."""
    for i in range(0, len(index) - 11, 12):
        off, size, _ = struct.unpack_from("<III", index, i)
        if not size:
            continue
        t = zlib.decompress(data[off:off + size]).decode("utf8", "replace")
        t = re.sub(r"<note\b.*?</note>|<title\b.*?</title>|<figure\b.*?</figure>", " ", t, flags=re.S)
        t = re.sub(r"<(div|p|lb|lg|l|br|chapter)\b[^>]*>", "\n", t)
        out = []
        for p in html.unescape(TAG.sub("", t)).split("\n"):
            p = re.sub(r" +([,.;:!?])", r"\1", WS.sub(" ", p)).strip()
            while len(p) > 1500:                       # a whole chapter without paragraph marks
                cut = p.find(". ", 1000)
                if cut < 0 or cut > 3000:
                    break
                out.append(p[:cut + 1])
                p = p[cut + 2:]
            if out and len(out[-1]) < 200:             # a verse or line of poetry
                out[-1] += " " + p
            elif p:
                out.append(p)
        yield out


def from_rdb(data):
    """R lazy-load data: every CHARSXP of every zlib block, in order (no full parser needed)."""
    docs, pos = [], 0
    while pos + 8 < len(data):
        m = None
        for i in range(pos, min(pos + 64, len(data) - 6)):
            kind = data[i + 4:i + 5]
            if kind in (b"2", b"Z") or data[i + 4:i + 6] in (b"x\x9c", b"x\xda", b"x\x01"):
                m = i
                break
        if m is None:
            break
        try:
            if data[m + 4:m + 5] == b"Z":
                d = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6 | lzma.PRESET_EXTREME}])
                raw, used = d.decompress(data[m + 5:]), None
                pos = len(data) - len(d.unused_data) if d.eof else len(data)
            elif data[m + 4:m + 5] == b"2":
                import bz2
                d = bz2.BZ2Decompressor()
                raw = d.decompress(data[m + 5:])
                pos = len(data) - len(d.unused_data)
            else:
                d = zlib.decompressobj()
                raw = d.decompress(data[m + 4:])
                pos = len(data) - len(d.unused_data)
        except Exception:
            pos = m + 1
            continue
        lines = []
        for s in re.finditer(rb"\x00[\x00-\xff]{2}\x09", raw):
            j = s.end()
            if j + 4 <= len(raw):
                n = struct.unpack_from(">i", raw, j)[0]
                if 0 <= n < 2000 and j + 4 + n <= len(raw):
                    lines.append(raw[j + 4:j + 4 + n].decode("utf8", "replace"))
        docs.append("\n".join(lines))
    return docs


def wordnet(t):
    """WordNet in dict form: one line a sense, with its headword in front."""
    out, head = [], ""
    for entry in re.split(r"\n(?=\S)", re.sub(r"\s*\[(syn|ant):[^\]]*\]", "", t)):
        head, _, body = entry.partition("\n")
        for sense in re.split(r"(?:^|\s)(?:n|v|adj|adv)?\s*\d+: ", " " + WS.sub(" ", body)):
            if len(sense) > 30:
                out.append("%s: %s." % (head.strip(), sense.strip().rstrip(";.")))
    return out


def handler(path):
    p = path[:-3] if path.endswith((".gz", ".dz")) else path
    base = os.path.basename(p)
    if SKIP.search(path) or "/anarchism/markdown/" in path or "/site-library/" in path:
        return None, False
    if "/share/games/fortunes/" in path and "." not in base:
        return "fortune", True
    if path.endswith(".dict.dz"):
        return "dict", False
    if re.search(r"/man/man\d", p) and re.search(r"\.\d\w*$", p):
        return "roff", False
    if FOREIGN.search(path):
        return None, False
    if re.search(r"\.x?html?(\.en)?$", p) or re.search(r"/help/C/.*\.(page|xml|docbook)$", p) or p.endswith((".docbook", ".dbk")):
        return "html", False
    if p.endswith((".pod",)):
        return "pod", False
    if re.search(r"\.info(-\d+)?$", p):
        return "text", False
    if re.search(r"\.(rst|rst\.txt|txt|md|markdown|texi|asciidoc|adoc|org|text)$", p) or re.match(r"(README|NEWS|HOWTO|FAQ|INTRO|TUTORIAL)", base):
        return "text", False
    if p.endswith(".json") and "/cataclysm-dda/" in path:
        return "json", True
    if p.endswith(".cfg") and "wesnoth" in path:
        return "wml", True
    if p.endswith(".txt") or ("endless-sky" in path and "/data/" in path):
        return "text", False
    return None, False


def documents(deb):
    """Yield (path, loose, [paragraph, ...]) for each text file of a package."""
    if deb.endswith(".i18n"):                          # apt's package descriptions
        with open(deb, encoding="utf8") as f:
            for block in f.read().split("\n\n"):
                t = block.partition("Description-en: ")[2]
                yield deb, False, re.sub(r"\n \.\n", "\n\n", t).replace("\n  ", "\n\n").replace("\n ", " ").split("\n")
        return
    proc = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE)
    sword = {}
    with tarfile.open(fileobj=proc.stdout, mode="r|") as tar:
        for m in tar:
            if not m.isfile() or m.size > 64 << 20 or m.size < 300:
                continue
            path = m.name.lstrip(".")
            if re.search(r"\.[bc]z[sz]$", path):
                sword[path] = tar.extractfile(m).read()
                continue
            if path.endswith("/data/Rdata.rdb"):
                for d in from_rdb(tar.extractfile(m).read()):
                    yield path, True, from_text(d, path)
                continue
            kind, loose = handler(path)
            if kind is None:
                continue
            raw = tar.extractfile(m).read()
            if path.endswith((".gz", ".dz")):
                try:
                    raw = gzip.decompress(raw)
                except Exception:
                    continue
            try:
                t = raw.decode("utf8")
            except UnicodeDecodeError:
                t = raw.decode("latin1")
            if "endless-sky" in path:
                yield path, True, re.findall(r"`([^`]{20,})`", t)
            elif kind == "html":
                yield path, False, from_html(t, path)
            elif kind == "roff":
                yield path, False, from_roff(t, path)
            elif kind == "pod":
                yield path, False, from_pod(t, path)
            elif kind == "fortune":
                yield path, True, [re.sub(r"\s+", " ", x) for x in re.split(r"\n%+\n", t)]
            elif kind == "dict" and path.endswith("/wn.dict.dz"):
                paras = wordnet(t)
                for i in range(0, len(paras), 200):
                    yield path, False, paras[i:i + 200]
            elif kind == "dict":
                paras = from_text(re.sub(r"[{}\\]", "", t), path)
                for i in range(0, len(paras), 200):
                    yield path, False, [re.sub(r"\[[^\]]*\]", "", x) for x in paras[i:i + 200]]
            elif kind == "json":
                yield path, True, [x.replace('\\n', " ").replace('\\"', '"') for x in
                                   re.findall(r'"(?:description|text|dynamic_line|str)":\s*"((?:[^"\\]|\\.){60,})"', t)]
            elif kind == "wml":
                t = re.sub(r"#[^\n]*", "", t)
                yield path, True, [x.replace('""', '"') for x in
                                   re.findall(r'(?:message|story|description|note)\s*=\s*_\s*"((?:[^"]|"")*)"', t)]
            else:
                yield path, False, from_text(t, path)
    proc.wait()
    for p in [p for p in sword if p.endswith("z")]:
        for paras in from_sword(sword.get(p[:-1] + "s", b""), sword[p]):
            yield p, True, paras


def extract(job):
    deb, outdir = job
    pkg = os.path.basename(deb).split("_")[0].removesuffix(".i18n")
    nd = nb = raw = 0
    with open(os.path.join(outdir, pkg + ".txt"), "w", encoding="utf8") as f:
        for path, loose, paras in documents(deb):
            keep = []
            for p in paras:
                p = WS.sub(" ", p).strip()
                raw += len(p)
                if prose(p, loose) and sum(1 for c in p if ord(c) > 127) < 0.05 * len(p) + 2:
                    keep.append(p)
            if sum(map(len, keep)) >= 200:
                s = "\n".join(keep) + "\n\n"
                f.write(s)
                nd += 1
                nb += len(s)
    return pkg, nd, raw, nb


def merge(out, valid, stats, files):
    """Drop repeated paragraphs, then write the documents in an order given by their hashes."""
    seen, prefix, rows, docs = set(), {}, [], []
    for name in files:
        nin = nout = n = 0
        with open(name, encoding="utf8") as f:
            doc = []
            for line in f:
                nin += len(line.encode())
                if line != "\n":
                    key = PUNCT.sub(" ", line.lower())
                    h = hashlib.blake2b(key.encode(), digest_size=8).digest()
                    if h in seen:
                        continue
                    seen.add(h)
                    pre = hashlib.blake2b(" ".join(key.split()[:7]).encode(), digest_size=8).digest()
                    prefix[pre] = prefix.get(pre, 0) + 1
                    if prefix[pre] <= 20:              # "Returns the value of the ..." again and again
                        doc.append(line)
                elif doc:
                    s = "".join(doc).encode()
                    doc = []
                    if len(s) >= 200:
                        docs.append((hashlib.blake2b(s, digest_size=8).digest(), s))
                        nout += len(s) + 1
                        n += 1
        rows.append((os.path.basename(name)[:-4], n, nin, nout))
    docs.sort()
    held = [s for h, s in docs if int.from_bytes(h, "big") % 200 == 0]
    kept = [s for h, s in docs if int.from_bytes(h, "big") % 200]
    if not held and kept:                              # a few long documents: the last 2% of one instead
        cut = kept[-1].find(b"\n", len(kept[-1]) - sum(map(len, kept)) // 50) + 1
        held, kept[-1] = [kept[-1][cut:]], kept[-1][:cut]
    for name, part in ((out, kept), (valid, held)):
        with open(name, "wb") as f:
            f.write(b"\n".join(part))
    with open(stats, "w") as f:
        f.write("package\tdocuments\tprose_bytes\tprose_bytes_after_dedup\n")
        for r in rows:
            f.write("%s\t%d\t%d\t%d\n" % r)


if __name__ == "__main__":
    if len(sys.argv) > 3 and sys.argv[1] == "extract":
        with multiprocessing.Pool() as pool:
            for r in pool.imap_unordered(extract, [(d, sys.argv[2]) for d in sys.argv[3:]]):
                print("%-34s %6d documents  %9.2f MB text  %8.2f MB prose" % (r[0], r[1], r[2] / 1e6, r[3] / 1e6), flush=True)
    elif len(sys.argv) > 5 and sys.argv[1] == "merge":
        merge(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
    else:
        sys.exit(__doc__)
