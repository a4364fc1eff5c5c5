/* tiny_run.h - a data set written by hand and a run small enough to be repeated many times. */
#ifndef TINY_RUN_H
#define TINY_RUN_H

#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/rng.h"
#include "data/shard.h"
#include "train/trainer.h"

#define OK(call) do { if ((call) != IDA_OK) fail_msg("%s: %s", #call, ida_last_error()); } while (0)

enum { TINY_VOCAB = 61 };

/* Where this process keeps its folders: in memory where that is possible, a run is mostly fsync. */
static inline const char *tiny_root(void) {
    static char root[64];
    snprintf(root, sizeof root, "%s/ida_test_train_%ld", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (long)getpid());
    return root;
}

/* A folder that is not there yet. The name lives on; at most 32 of them are asked for by one test. */
static inline const char *tiny_dir(const char *name) {
    static char ring[32][160];
    static int next;
    char *d = ring[next++ % 32];
    snprintf(d, 160, "%s/%s", tiny_root(), name);
    OK(ida_remove_tree(d));
    return d;
}

static inline void tiny_clean(void) { OK(ida_remove_tree(tiny_root())); }

/* Random ids; the separator (0) starts documents of mean length `doc`. */
static inline void tiny_tokens(uint16_t *ids, int64_t n, uint64_t seed, double doc) {
    for (int64_t i = 0; i < n; i++) {
        bool start = i == 0 || ida_uniform(seed, IDA_STREAM_TEST, (uint64_t)(2 * i)) < 1 / doc;
        ids[i] = start ? 0 : (uint16_t)(1 + ida_uniform(seed, IDA_STREAM_TEST, (uint64_t)(2 * i + 1)) * (TINY_VOCAB - 1));
    }
}

static inline json_t *tiny_split(const char *dir, const char *split, const int64_t *sizes, int n, uint64_t seed) {
    json_t *shards = json_array();
    int64_t total = 0;
    for (int i = 0; i < n; i++) {
        char name[40], hex[17], *path;
        size_t bytes = IDA_SHARD_HEADER_BYTES + 2 * (size_t)sizes[i];
        uint8_t *file = calloc(1, bytes);
        uint64_t hash;
        int64_t size;
        assert_non_null(file);
        snprintf(name, sizeof name, "%s_%06d.bin", split, i);
        ida_shard_header((int32_t *)(void *)file, 2, sizes[i]);
        tiny_tokens((uint16_t *)(void *)(file + IDA_SHARD_HEADER_BYTES), sizes[i], seed + (uint64_t)i, 40);
        path = ida_path_join(dir, name);
        assert_non_null(path);
        OK(ida_write_file(path, file, bytes));
        OK(ida_hash_file(path, &hash, &size));
        snprintf(hex, sizeof hex, "%016" PRIx64, hash);
        json_array_append_new(shards, json_pack("{s:s, s:I, s:s}", "name", name, "tokens", (json_int_t)sizes[i], "xxh3", hex));
        total += sizes[i];
        ida_free(path);
        free(file);
    }
    return json_pack("{s:I, s:I, s:I, s:o}", "tokens", (json_int_t)total, "documents", (json_int_t)(total / 40), "bytes",
                     (json_int_t)(3 * total),
                     "shards", shards);
}

static inline const char *tiny_data_seeded(const char *name, const int64_t *train, int n_train, const int64_t *val, int n_val,
                                           uint64_t seed) {
    const char *dir = tiny_dir(name);
    OK(ida_mkdirs(dir));
    json_t *splits = json_pack("{s:o, s:o}", "train", tiny_split(dir, "train", train, n_train, seed), "val",
                               tiny_split(dir, "val", val, n_val, seed + 50));
    json_t *j = json_pack("{s:s, s:i, s:i, s:s, s:{s:i, s:s}, s:o}", "format", IDA_MANIFEST_FORMAT, "version",
                          IDA_MANIFEST_VERSION, "vocab_size", TINY_VOCAB, "tokenizer_hash", "0000000000000000",
                          "separator", "id", 0, "side", "before", "splits", splits);
    char *path = ida_path_join(dir, "manifest.json");
    assert_non_null(j);
    OK(ida_json_save(j, path, 2));
    ida_free(path);
    path = ida_path_join(dir, "tokenizer.json");
    OK(ida_write_file(path, "{\"made\": \"by the test\"}\n", 24));
    ida_free(path);
    json_decref(j);
    return dir;
}

static inline const char *tiny_data(const char *name, const int64_t *train, int n_train, const int64_t *val, int n_val) {
    return tiny_data_seeded(name, train, n_train, val, n_val, 100);
}

/* Shard edges at a row's end (240 = 10 rows of 24), inside rows, an empty shard, one of a single token; 53 rows an epoch. */
static inline const char *tiny_standard_data(void) {
    static const int64_t train[] = { 240, 500, 0, 1, 529 }, val[] = { 150, 51 };
    return tiny_data("data", train, 5, val, 2);
}

static inline ida_train_options tiny_options(ida_mixer_kind mixer, const char *data, const char *out) {
    ida_train_options o;
    ida_train_defaults(&o);
    OK(ida_config_preset("tiny", mixer, &o.config));
    o.config.vocab_size = TINY_VOCAB;
    o.config.d_model = 16;
    o.config.ffn_hidden = 32;
    o.config.state_size = 4;
    o.data_dir = data;
    o.out_dir = out;
    o.seq_len = 24;
    o.batch = 6;
    o.micro_batch = 2;
    o.steps = 12;
    o.lr = 1e-2;
    return o;
}

/* ---- comparing runs */

static inline char *tiny_read(const char *dir, const char *file, int64_t *size) {
    char *path = ida_path_join(dir, file), *data = NULL;
    OK(ida_read_file(path, 1 << 26, &data, size));
    ida_free(path);
    return data;
}

static inline void tiny_same_file(const char *a, const char *b, const char *file) {
    int64_t na, nb;
    char *x = tiny_read(a, file, &na), *y = tiny_read(b, file, &nb);
    if (na != nb || memcmp(x, y, (size_t)na) != 0) fail_msg("%s differs between %s and %s", file, a, b);
    ida_free(x);
    ida_free(y);
}

/* log.jsonl without what is allowed to differ. Caller frees. */
static inline char *tiny_log(const char *run) {
    int64_t n;
    char *text = tiny_read(run, "log.jsonl", &n), *out = calloc(1, (size_t)n + 1), *at = out, *save = NULL;
    assert_non_null(out);
    assert_true(n == 0 || text[n - 1] == '\n');
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_t *j = json_loads(line, 0, NULL);
        if (!j) fail_msg("log line is not JSON: %s", line);
        json_object_del(j, "time");
        json_object_del(j, "tokens_per_s");
        json_object_del(j, "device_memory_peak_bytes");
        json_object_del(j, "device_memory_planned_bytes");
        char *s = json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS);
        at += sprintf(at, "%s\n", s);
        free(s);
        json_decref(j);
    }
    ida_free(text);
    return out;
}

static inline void tiny_same_log(const char *a, const char *b) {
    char *x = tiny_log(a), *y = tiny_log(b);
    if (strcmp(x, y) != 0) {
        size_t i = 0;
        while (x[i] && x[i] == y[i]) i++;
        while (i > 0 && x[i - 1] != '\n') i--;
        fail_msg("logs differ: %s: %.200s\n%s: %.200s", a, x + i, b, y + i);
    }
    free(x);
    free(y);
}

/* Last checkpoint: weights, moments and counters, bit for bit; and the logs. */
static inline void tiny_same_run(const char *a, const char *b, int64_t step) {
    char x[256], y[256];
    snprintf(x, sizeof x, "%s/step-%08lld", a, (long long)step);
    snprintf(y, sizeof y, "%s/step-%08lld", b, (long long)step);
    tiny_same_file(x, y, "model.safetensors");
    tiny_same_file(x, y, "optimizer.safetensors");
    tiny_same_file(x, y, "trainer_state.json");
    tiny_same_log(a, b);
}

#endif
