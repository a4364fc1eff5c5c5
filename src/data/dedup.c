/* dedup.c - see dedup.h. Open addressing; the pair (0, 0) marks a free slot. */
#include "data/dedup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/mem.h"

typedef struct hash128 { uint64_t lo, hi; } hash128;

struct ida_dedup {
    hash128 *slot;
    int64_t n, mask;
    FILE *file;
    char *path;
};

static bool is_free(hash128 h) { return !h.lo && !h.hi; }

/* The slot of h, or the free one where it belongs. */
static hash128 *find(hash128 *slot, int64_t mask, hash128 h) {
    for (int64_t i = (int64_t)(h.lo & (uint64_t)mask);; i = (i + 1) & mask)
        if (is_free(slot[i]) || (slot[i].lo == h.lo && slot[i].hi == h.hi)) return &slot[i];
}

static ida_status add(ida_dedup *d, hash128 h, bool *seen) {
    if (d->n >= (d->mask + 1) / 4 * 3) {
        hash128 *larger = NULL;
        int64_t mask = 2 * d->mask + 1;
        IDA_TRY(IDA_CALLOC(larger, mask + 1, "hashes of seen documents"));
        for (int64_t i = 0; i <= d->mask; i++)
            if (!is_free(d->slot[i])) *find(larger, mask, d->slot[i]) = d->slot[i];
        ida_free(d->slot);
        d->slot = larger;
        d->mask = mask;
    }
    hash128 *at = find(d->slot, d->mask, h);
    *seen = !is_free(*at);
    d->n += !*seen;
    *at = h;
    return IDA_OK;
}

static ida_status read_journal(ida_dedup *d, int64_t n) {
    hash128 h;
    bool seen;
    for (int64_t i = 0; i < n; i++) {
        IDA_FAIL_IF(fread(&h, sizeof h, 1, d->file) != 1, IDA_E_FORMAT,
                    "%s: holds fewer than %lld hashes: remove the folder and pack again", d->path, (long long)n);
        IDA_TRY(add(d, h, &seen));
    }
    IDA_FAIL_IF(d->n != n, IDA_E_FORMAT, "%s: is damaged: remove the folder and pack again", d->path);
    bool cut = fflush(d->file) == 0 && ftruncate(fileno(d->file), (off_t)(n * (int64_t)sizeof h)) == 0
        && fseek(d->file, 0, SEEK_END) == 0;
    IDA_FAIL_IF(!cut, IDA_E_IO, "%s: cannot cut: %s", d->path, strerror(errno));
    return IDA_OK;
}

ida_status ida_dedup_open(const char *journal, int64_t n, ida_dedup **out) {
    ida_dedup *d = NULL;
    ida_status st;
    IDA_TRY(IDA_CALLOC(d, 1, "seen documents"));
    d->mask = 1023;
    IDA_TRY_GOTO(IDA_CALLOC(d->slot, d->mask + 1, "hashes of seen documents"));
    if (journal) {
        d->path = ida_strdup(journal);
        if (!d->path) IDA_FAIL_GOTO(IDA_E_NOMEM, "%s: out of memory", journal);
        d->file = fopen(journal, n ? "r+be" : "w+be");
        if (!d->file) IDA_FAIL_GOTO(IDA_E_IO, "%s: cannot open: %s", journal, strerror(errno));
        IDA_TRY_GOTO(read_journal(d, n));
    }
    *out = d;
    return IDA_OK;
out:
    ida_dedup_close(d);
    return st;
}

void ida_dedup_close(ida_dedup *d) {
    if (!d) return;
    if (d->file) fclose(d->file);
    ida_free(d->slot);
    ida_free(d->path);
    ida_free(d);
}

ida_status ida_dedup_add(ida_dedup *d, const char *text, int64_t n, bool *seen) {
    XXH128_hash_t x = XXH3_128bits(text, (size_t)n);
    hash128 h = {x.low64, x.high64};
    if (is_free(h)) h.lo = 1;
    IDA_TRY(add(d, h, seen));
    IDA_FAIL_IF(!*seen && d->file && fwrite(&h, sizeof h, 1, d->file) != 1, IDA_E_IO, "%s: cannot write: %s", d->path,
                strerror(errno));
    return IDA_OK;
}

int64_t ida_dedup_count(const ida_dedup *d) { return d->n; }

ida_status ida_dedup_sync(ida_dedup *d) {
    IDA_FAIL_IF(d->file && (fflush(d->file) || fsync(fileno(d->file))), IDA_E_IO, "%s: cannot write: %s", d->path,
                strerror(errno));
    return IDA_OK;
}
