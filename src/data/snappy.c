/* snappy.c - see snappy.h. A block is the unpacked length as a varint, then elements: the low two bits of a tag tell a literal
 * or a copy with a 1, 2 or 4 byte distance. */
#include "data/snappy.h"

#include <string.h>

typedef struct reader { const uint8_t *p, *end; } reader;

/* n little-endian bytes (1..4). */
static bool take(reader *r, int n, uint32_t *v) {
    if (r->end - r->p < n) return false;
    *v = 0;
    for (int i = 0; i < n; i++) *v |= (uint32_t)*r->p++ << (8 * i);
    return true;
}

static bool length(reader *r, uint64_t *v) {
    *v = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        if (r->p == r->end) return false;
        uint8_t b = *r->p++;
        *v |= (uint64_t)(b & 127) << shift;
        if (b < 128) return *v <= UINT32_MAX;
    }
    return false;
}

static bool literal(reader *r, uint8_t tag, uint8_t *out, int64_t at, int64_t out_n, int64_t *n) {
    uint32_t more = tag >> 2;
    if (more >= 60 && !take(r, (int)more - 59, &more)) return false;
    *n = (int64_t)more + 1;
    if (*n > r->end - r->p || *n > out_n - at) return false;
    memcpy(out + at, r->p, (size_t)*n);
    r->p += *n;
    return true;
}

static bool copy(reader *r, uint8_t tag, uint8_t *out, int64_t at, int64_t out_n, int64_t *n) {
    static const int bytes[4] = {0, 1, 2, 4};
    uint32_t distance;
    if (!take(r, bytes[tag & 3], &distance)) return false;
    if ((tag & 3) == 1) {
        *n = 4 + (tag >> 2 & 7);
        distance |= (uint32_t)(tag >> 5) << 8;
    } else {
        *n = (tag >> 2) + 1;
    }
    if (distance == 0 || (int64_t)distance > at || *n > out_n - at) return false;
    const uint8_t *from = out + at - distance;
    if ((int64_t)distance >= *n) memcpy(out + at, from, (size_t)*n);
    else for (int64_t i = 0; i < *n; i++) out[at + i] = from[i]; /* repeats what it writes */
    return true;
}

bool ida_snappy_unpack(const uint8_t *in, int64_t n, uint8_t *out, int64_t out_n) {
    reader r = {in, in + n};
    uint64_t told;
    int64_t at = 0, step;
    if (!length(&r, &told) || told != (uint64_t)out_n) return false;
    while (r.p < r.end) {
        uint8_t tag = *r.p++;
        if (!(tag & 3 ? copy(&r, tag, out, at, out_n, &step) : literal(&r, tag, out, at, out_n, &step))) return false;
        at += step;
    }
    return at == out_n;
}
