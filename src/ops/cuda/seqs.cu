/* seqs.cu - the offsets of a batch's sequences on the device, and the sequence of each token. The tables of the last few batches
 * are kept by content: within a step every layer asks for the same ones. Those of a recording are its own.
 * Invariant: an entry's tables are rewritten in stream order, so what was queued before still reads the old ones. */
#include <string.h>

#include "ops/cuda/cuda_device.h"

enum { ENTRIES = 4, THREADS = 256 };

struct ida_cuda_seq_entry {
    int64_t *host;       /* key: cu [S+1], then pos0 [S] */
    int64_t host_cap, n; /* n = -1: empty */
    unsigned long long last_use;
    unsigned char *block; /* device: cu, pos0, seq, each from a multiple of 256 */
    int64_t block_bytes;
    ida_cuda_seqs tables;
};
typedef ida_cuda_seq_entry entry;

struct ida_cuda_seq_cache {
    unsigned long long uses;
    entry entries[ENTRIES];
};

/* seq[t] = the last s with cu[s] <= t: of the empty sequences before it none has a token. */
static __global__ void seqs__search_per_token(int32_t *seq, const int64_t *cu, int64_t n_seq, int64_t n_tokens) {
    const int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x; t < n_tokens; t += stride) {
        int64_t lo = 0, hi = n_seq; /* cu[lo] <= t < cu[hi] */
        while (hi - lo > 1) {
            const int64_t mid = lo + (hi - lo) / 2;
            if (cu[mid] <= t) lo = mid;
            else hi = mid;
        }
        seq[t] = (int32_t)lo;
    }
}

static bool same(const entry *e, const ida_seqs *seqs) {
    if (e->n != seqs->n) return false;
    const int64_t n = seqs->n;
    if (n > 0 && memcmp(e->host, seqs->cu, (size_t)(n + 1) * sizeof(int64_t)) != 0) return false;
    const int64_t *pos0 = e->host + n + 1;
    if (n > 0 && seqs->pos0) return memcmp(pos0, seqs->pos0, (size_t)n * sizeof(int64_t)) == 0;
    for (int64_t i = 0; i < n; i++)
        if (pos0[i] != 0) return false;
    return true;
}

static int64_t round_up(int64_t bytes) { return (bytes + 255) / 256 * 256; }

static ida_status room(const ida_device *dev, entry *e, int64_t bytes) {
    if (bytes <= e->block_bytes) return IDA_OK;
    ida_cuda_free(dev, e->block);
    e->block = NULL;
    e->block_bytes = 0;
    void *block = NULL;
    const int64_t size = bytes + bytes / 4; /* batches of like size follow */
    IDA_TRY(ida_cuda_alloc(dev, &block, size, "the table of a batch's sequences"));
    e->block = (unsigned char *)block;
    e->block_bytes = size;
    return IDA_OK;
}

static ida_status fill(const ida_device *dev, entry *e, const ida_seqs *seqs) {
    const int64_t n = seqs->n, n_tokens = n > 0 ? seqs->cu[n] : 0, words = 2 * n + 1;
    IDA_FAIL_IF(n > INT32_MAX, IDA_E_UNSUPPORTED, "%lld sequences in one batch: at most %d", (long long)n, INT32_MAX);
    e->n = -1;
    void *host = e->host;
    IDA_TRY(ida_grow(&host, &e->host_cap, words, sizeof(int64_t), "the table of a batch's sequences"));
    e->host = (int64_t *)host;
    const int64_t cu_bytes = round_up((n + 1) * (int64_t)sizeof(int64_t)),
                  pos_bytes = round_up((n > 0 ? n : 1) * (int64_t)sizeof(int64_t));
    int64_t seq_bytes;
    IDA_FAIL_IF(!ida_mul64(n_tokens, sizeof(int32_t), &seq_bytes), IDA_E_NOMEM, "%lld tokens in one batch", (long long)n_tokens);
    IDA_TRY(room(dev, e, cu_bytes + pos_bytes + round_up(seq_bytes) + 256));

    e->host[0] = 0;
    if (n > 0) memcpy(e->host, seqs->cu, (size_t)(n + 1) * sizeof(int64_t));
    if (n > 0 && seqs->pos0) memcpy(e->host + n + 1, seqs->pos0, (size_t)n * sizeof(int64_t));
    else memset(e->host + n + 1, 0, (size_t)n * sizeof(int64_t));
    int64_t longest = 0;
    for (int64_t i = 0; i < n; i++)
        if (e->host[i + 1] - e->host[i] > longest) longest = e->host[i + 1] - e->host[i];

    int64_t *cu = (int64_t *)e->block, *pos0 = (int64_t *)(e->block + cu_bytes);
    int32_t *seq = (int32_t *)(e->block + cu_bytes + pos_bytes);
    IDA_TRY(ida_cuda_upload(dev, cu, e->host, (n + 1) * (int64_t)sizeof(int64_t)));
    IDA_TRY(ida_cuda_upload(dev, pos0, e->host + n + 1, n * (int64_t)sizeof(int64_t)));
    if (n_tokens > 0) {
        const int64_t blocks = (n_tokens + THREADS - 1) / THREADS, most = 1 << 16;
        seqs__search_per_token<<<(unsigned)(blocks < most ? blocks : most), THREADS, 0, ida_cuda_of(dev)->stream>>>(seq, cu, n,
                                                                                                                    n_tokens);
        IDA_TRY(IDA_CUDA_LAUNCHED("the table of a batch's sequences"));
    }
    e->tables.n = n, e->tables.n_tokens = n_tokens, e->tables.longest = longest;
    e->tables.cu = cu, e->tables.pos0 = pos0, e->tables.seq = seq;
    e->n = n;
    return IDA_OK;
}

ida_status ida_cuda_seqs_of(const ida_device *dev, const ida_seqs *seqs, ida_cuda_seqs *out) {
    ida_cuda_priv *p = ida_cuda_priv_of(dev);
    if (p->recorded) {
        IDA_FAIL_IF(!same(p->recorded, seqs), IDA_E_UNSUPPORTED, "%s: a recording has one batch, not two", p->label);
        *out = p->recorded->tables;
        return IDA_OK;
    }
    if (!p->seqs) {
        IDA_TRY(IDA_CALLOC(p->seqs, 1, "the tables of sequences"));
        for (int i = 0; i < ENTRIES; i++) p->seqs->entries[i].n = -1;
    }
    ida_cuda_seq_cache *cache = p->seqs;
    entry *oldest = &cache->entries[0], *e = NULL;
    for (int i = 0; i < ENTRIES && !e; i++) {
        if (same(&cache->entries[i], seqs)) e = &cache->entries[i];
        if (cache->entries[i].last_use < oldest->last_use) oldest = &cache->entries[i];
    }
    if (!e) {
        e = oldest;
        IDA_TRY(fill(dev, e, seqs));
    }
    e->last_use = ++cache->uses;
    *out = e->tables;
    return IDA_OK;
}

ida_status ida_cuda_seqs_keep(const ida_device *dev, const ida_seqs *seqs, ida_cuda_seq_entry **out) {
    entry *e;
    IDA_TRY(IDA_CALLOC(e, 1, "the table of a batch's sequences"));
    const ida_status st = fill(dev, e, seqs);
    if (st != IDA_OK) ida_cuda_seqs_drop(dev, e);
    else *out = e;
    return st;
}

ida_status ida_cuda_seqs_reposition(const ida_device *dev, ida_cuda_seq_entry *e, const ida_seqs *seqs) {
    const int64_t n = e->n;
    const bool lengths = seqs->n == n && seqs->pos0 && memcmp(e->host, seqs->cu, (size_t)(n + 1) * sizeof(int64_t)) == 0;
    IDA_FAIL_IF(!lengths, IDA_E_UNSUPPORTED, "%s: a recording was made of other lengths", ida_cuda_priv_of(dev)->label);
    if (memcmp(e->host + n + 1, seqs->pos0, (size_t)n * sizeof(int64_t)) == 0) return IDA_OK;
    IDA_TRY(ida_cuda_upload(dev, (void *)(uintptr_t)e->tables.pos0, seqs->pos0, n * (int64_t)sizeof(int64_t)));
    memcpy(e->host + n + 1, seqs->pos0, (size_t)n * sizeof(int64_t));
    return IDA_OK;
}

void ida_cuda_seqs_drop(const ida_device *dev, ida_cuda_seq_entry *e) {
    if (!e) return;
    ida_cuda_free(dev, e->block);
    ida_free(e->host);
    ida_free(e);
}

void ida_cuda_seqs_free(const ida_device *dev) {
    ida_cuda_priv *p = ida_cuda_priv_of(dev);
    if (!p->seqs) return;
    for (int i = 0; i < ENTRIES; i++) {
        ida_cuda_free(dev, p->seqs->entries[i].block);
        ida_free(p->seqs->entries[i].host);
    }
    ida_free(p->seqs);
    p->seqs = NULL;
}
