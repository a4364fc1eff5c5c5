/* test_pack.c - packing: what is in the shards and the manifest, the two kinds of split, and what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/file.h"
#include "core/mem.h"
#include "data/dataset.h"
#include "data/shard.h"
#include "lib/scratch.h"
#include "text/tables.h"

static ida_tokenizer *tok;

static int setup(void **state) {
    if (ida_tokenizer_load(IDA_TEST_DATA "/tokenizer/trained.json", &tok)) return -1;
    return scratch_setup(state);
}

static int teardown(void **state) {
    ida_tokenizer_free(tok);
    return scratch_teardown(state);
}

static const char *rows_file(void **state, const char *name, int64_t from, int64_t n) {
    ida_buf b = {0};
    for (int64_t i = from; i < from + n; i++) ida_buf_addf(&b, "{\"text\":\"Row %lld says: the state doesn't grow, é %lld.\"}\n",
                                                           (long long)i, (long long)(i * i));
    const char *path = in_dir(*state, name);
    put_file(path, b.data, b.len);
    ida_buf_free(&b);
    return path;
}

static ida_status pack(const char *in, const char *out, double val, int64_t shard_tokens, bool split, ida_pack_stats *s) {
    ida_pack_options o = {.inputs = &in, .n_inputs = 1, .out_dir = out, .val_fraction = val, .shard_tokens = shard_tokens,
                          .split_blank_lines = split};
    return ida_data_pack(tok, &o, NULL, NULL, s);
}

static int32_t *all_tokens(const char *dir, const char *split, int64_t *n) {
    ida_dataset *d = NULL;
    int32_t *ids = NULL;
    if (ida_dataset_open(dir, split, true, &d)) fail_msg("%s", ida_last_error());
    *n = ida_dataset_tokens(d);
    ids = malloc((size_t)(*n + 1) * sizeof *ids);
    assert_int_equal(ida_dataset_read(d, 0, *n, ids), IDA_OK);
    ida_dataset_close(d);
    return ids;
}

static void shards_hold_separator_then_document(void **state) {
    const char *in = rows_file(state, "a.jsonl", 0, 3), *out = in_dir(*state, "plain");
    ida_pack_stats s;
    assert_int_equal(pack(in, out, 0, 0, false, &s), IDA_OK);
    int64_t n, at = 0, k;
    int32_t *ids = all_tokens(out, "train", &n), *doc;
    for (int i = 0; i < 3; i++) {
        char text[128];
        int len = snprintf(text, sizeof text, "Row %d says: the state doesn't grow, é %d.", i, i * i);
        assert_int_equal(ids[at++], ida_tokenizer_eos(tok));
        assert_int_equal(ida_tokenizer_encode(tok, text, (size_t)len, false, &doc, &k), IDA_OK);
        assert_memory_equal(ids + at, doc, (size_t)k * sizeof *doc);
        at += k;
        ida_ids_free(doc);
    }
    assert_int_equal(at, n);
    assert_int_equal(s.documents, 3);
    assert_int_equal(s.train_tokens, n);
    assert_int_equal(s.val_tokens, 0);
    assert_int_equal(s.shards, 1);
    free(ids);
    /* the file itself, byte for byte */
    char *raw = get_file(in_dir(out, "train_000000.bin"), &k);
    int32_t head[4];
    memcpy(head, raw, sizeof head);
    assert_int_equal(k, 1024 + 2 * n);
    assert_int_equal(head[0], 20240520);
    assert_int_equal(head[1], 1);
    assert_int_equal(head[2], n);
    assert_int_equal(head[3], 0);
    free(raw);
    assert_false(ida_exists(in_dir(out, "spool")));
    ida_tokenizer *copy = NULL;
    assert_int_equal(ida_tokenizer_load(out, &copy), IDA_OK);
    assert_true(ida_tokenizer_hash(copy) == ida_tokenizer_hash(tok));
    ida_tokenizer_free(copy);
}

/* Whatever the shard size and the thread count, the token stream is the same. */
static void stream_does_not_depend_on_shard_size_or_threads(void **state) {
    const char *in = rows_file(state, "a.jsonl", 0, 200);
    int64_t want_n = 0;
    int32_t *want = NULL;
    static const int64_t sizes[] = {0, 7, 100, 1000};
    int before = ida_get_threads();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char name[32];
        snprintf(name, sizeof name, "size-%d", (int)i);
        ida_pack_stats s;
        ida_set_threads(1 + (int)i % 3);
        assert_int_equal(pack(in, in_dir(*state, name), 0, sizes[i], false, &s), IDA_OK);
        int64_t n;
        int32_t *ids = all_tokens(in_dir(*state, name), "train", &n);
        if (sizes[i]) assert_int_equal(s.shards, (n + sizes[i] - 1) / sizes[i]);
        if (want) {
            assert_int_equal(n, want_n);
            assert_memory_equal(ids, want, (size_t)n * sizeof *ids);
            free(ids);
        } else {
            want = ids; /* of one shard */
            want_n = n;
        }
    }
    ida_set_threads(before);
    free(want);
}

static void one_token_shards(void **state) {
    put_file(in_dir(*state, "tiny.txt"), "ab cd", 5);
    ida_pack_stats s;
    assert_int_equal(pack(in_dir(*state, "tiny.txt"), in_dir(*state, "ones"), 0, 1, false, &s), IDA_OK);
    assert_int_equal(s.shards, s.train_tokens);
    int64_t n;
    int32_t *ids = all_tokens(in_dir(*state, "ones"), "train", &n);
    assert_int_equal(ids[0], ida_tokenizer_eos(tok));
    free(ids);
}

/* Long documents are encoded in parts; the ids are those of the whole. */
/* Long documents are encoded in parts: a pattern may take a newline along with the mark before it, so cuts must mind it. */
static void a_long_document_gives_the_ids_of_the_whole(void **state) {
    static const char *const files[] = {"trained.json", "qwen.json", "llama3.json", "metaspace.json"};
    size_t n = 3 << 20;
    static const char letters[] = "the state,\nit's  12\n\n--\nno\t<th";
    char *text = malloc(n);
    for (size_t i = 0; i < n; i++) text[i] = letters[(i * 7 + i / 31) % (sizeof letters - 1)];
    put_file(in_dir(*state, "long.txt"), text, (int64_t)n);
    for (int f = 0; f < 4; f++) {
        char name[512], out[1024];
        ida_tokenizer *t = NULL;
        const char *const inputs[] = {in_dir(*state, "long.txt")};
        snprintf(out, sizeof out, "%s", in_dir(*state, files[f]));
        ida_pack_options o = {.inputs = inputs, .n_inputs = 1, .out_dir = out};
        snprintf(name, sizeof name, IDA_TEST_DATA "/tokenizer/%s", files[f]);
        assert_int_equal(ida_tokenizer_load(name, &t), IDA_OK);
        assert_int_equal(t->in_parts, f < 2); /* the other two look across the cut: "two words", a mark in front */
        if (ida_tokenizer_eos(t) >= 0) {
            assert_int_equal(ida_data_pack(t, &o, NULL, NULL, NULL), IDA_OK);
            int64_t k, m;
            int32_t *ids = all_tokens(out, "train", &m), *want;
            assert_int_equal(ida_tokenizer_encode(t, text, n, false, &want, &k), IDA_OK);
            assert_int_equal(m, k + 1);
            assert_memory_equal(ids + 1, want, (size_t)k * sizeof *ids);
            ida_ids_free(want);
            free(ids);
        }
        ida_tokenizer_free(t);
    }
    free(text);
}

static json_t *manifest(const char *dir) {
    json_t *j = json_load_file(in_dir(dir, "manifest.json"), 0, NULL);
    assert_non_null(j);
    return j;
}

static const char *how(const char *dir) {
    static char text[16];
    json_t *j = manifest(dir);
    snprintf(text, sizeof text, "%s", json_string_value(json_object_get(j, "split")));
    json_decref(j);
    return text;
}

/* The same document goes to the same side in any company and order. */
static void split_by_hash_depends_on_the_document_only(void **state) {
    ida_pack_stats a, b;
    assert_int_equal(pack(rows_file(state, "a.jsonl", 0, 400), in_dir(*state, "hash-a"), 0.2, 0, false, &a), IDA_OK);
    assert_int_equal(pack(rows_file(state, "b.jsonl", 200, 400), in_dir(*state, "hash-b"), 0.2, 0, false, &b), IDA_OK);
    assert_string_equal(how(in_dir(*state, "hash-a")), "hash");
    ida_dataset *d = NULL;
    int64_t in_val = 0, n, *starts, docs;
    assert_int_equal(ida_dataset_open(in_dir(*state, "hash-a"), "val", true, &d), IDA_OK);
    in_val = ida_dataset_documents(d);
    assert_in_range(in_val, 50, 110); /* 80 expected, standard deviation 8 */
    assert_int_equal(ida_dataset_bytes(d), a.val_bytes);
    assert_int_equal(ida_dataset_docs(d, &starts, &docs), IDA_OK);
    assert_int_equal(docs, in_val);
    ida_free(starts);
    ida_dataset_close(d);
    int32_t *va = all_tokens(in_dir(*state, "hash-a"), "val", &n);
    int64_t m;
    int32_t *vb = all_tokens(in_dir(*state, "hash-b"), "val", &m);
    /* the second half of a's validation documents is the first half of b's */
    int64_t shared = 0;
    for (int64_t i = 0; i < n && !shared; i++)
        if (va[i] == ida_tokenizer_eos(tok) && n - i <= m && memcmp(va + i, vb, (size_t)(n - i) * sizeof *va) == 0) shared =
            n - i;
    assert_true(shared > n / 4);
    assert_int_equal(a.train_bytes + a.val_bytes, a.bytes);
    free(va);
    free(vb);
}

/* The 19 documents that waited in the spool and the 20th are not special. */
static void document_19_20_and_21_switch_the_kind_of_split(void **state) {
    for (int n = 18; n <= 22; n++) {
        char name[32];
        snprintf(name, sizeof name, "switch-%d", n);
        ida_pack_stats s;
        assert_int_equal(pack(rows_file(state, "s.jsonl", 0, n), in_dir(*state, name), 0.3, 0, false, &s), IDA_OK);
        assert_string_equal(how(in_dir(*state, name)), n < 20 ? "tail" : "hash");
        assert_int_equal(s.documents, n);
        assert_int_equal(s.train_bytes + s.val_bytes, s.bytes);
        assert_true(s.val_tokens > 0);
    }
}

static void few_documents_give_their_tail_to_validation(void **state) {
    ida_buf b = {0};
    for (int i = 0; i < 3000; i++) ida_buf_addf(&b, "Line %d of one long text, é.\n%s", i, i == 1400 ? "\f" : "");
    put_file(in_dir(*state, "novel.txt"), b.data, b.len);
    ida_pack_stats s;
    assert_int_equal(pack(in_dir(*state, "novel.txt"), in_dir(*state, "novel"), 0.1, 0, true, &s), IDA_OK);
    assert_string_equal(how(in_dir(*state, "novel")), "tail");
    assert_int_equal(s.documents, 2);
    assert_int_equal(s.train_bytes + s.val_bytes, s.bytes);
    double part = (double)s.val_tokens / (double)(s.val_tokens + s.train_tokens);
    assert_true(part > 0.099 && part < 0.101);
    int64_t n, m;
    int32_t *train = all_tokens(in_dir(*state, "novel"), "train", &n), *val = all_tokens(in_dir(*state, "novel"), "val", &m);
    int32_t eos = (int32_t)ida_tokenizer_eos(tok);
    assert_int_equal(val[0], eos);
    for (int64_t i = 1; i < m; i++) assert_int_not_equal(val[i], eos);
    /* the cut is at a line's end, and both parts together are the text */
    char *left, *right;
    size_t nl, nr;
    assert_int_equal(ida_tokenizer_decode(tok, train, n, true, &left, &nl), IDA_OK);
    assert_int_equal(ida_tokenizer_decode(tok, val, m, true, &right, &nr), IDA_OK);
    assert_int_equal(left[nl - 1], '\n');
    assert_int_equal(nr, s.val_bytes);
    assert_int_equal((int64_t)(nl + nr), b.len - 1); /* without the form feed */
    assert_memory_equal(right, b.data + nl + 1, nr);
    ida_string_free(left);
    ida_string_free(right);
    free(train);
    free(val);
    ida_buf_free(&b);
}

static int warned;
static void keep_log(void *user, const char *line) {
    (void)user;
    warned += strstr(line, "larger validation fraction") != NULL;
}

static void an_empty_validation_split_is_said(void **state) {
    ida_pack_stats s;
    warned = 0;
    ida_set_log(keep_log, NULL);
    assert_int_equal(pack(rows_file(state, "a.jsonl", 0, 25), in_dir(*state, "noval"), 1e-9, 0, false, &s), IDA_OK);
    ida_set_log(NULL, NULL);
    assert_int_equal(s.val_tokens, 0);
    assert_int_equal(warned, 1);
    ida_dataset *d = NULL;
    assert_int_equal(ida_dataset_open(in_dir(*state, "noval"), "val", true, &d), IDA_OK);
    assert_int_equal(ida_dataset_tokens(d), 0);
    ida_dataset_close(d);
}

static void bad_rows_are_left_out_and_counted(void **state) {
    static const char rows[] = "{\"text\":\"one\"}\nbroken\n{\"text\":\"\"}\n{\"nothing\":0}\n";
    put_file(in_dir(*state, "bad.jsonl"), rows, sizeof rows - 1);
    ida_pack_stats s;
    assert_int_equal(pack(in_dir(*state, "bad.jsonl"), in_dir(*state, "bad"), 0, 0, false, &s), IDA_OK);
    assert_int_equal(s.bad_rows, 2);
    assert_int_equal(s.documents, 2); /* an empty document is a document */
    assert_int_equal(s.bytes, 3);
    json_t *j = manifest(in_dir(*state, "bad"));
    assert_int_equal(json_integer_value(json_object_get(j, "bad_rows")), 2);
    json_t *list = json_object_get(j, "bad_row_list"), *second = json_array_get(list, 1);
    assert_int_equal(json_array_size(list), 2);
    assert_non_null(strstr(json_string_value(json_object_get(second, "file")), "bad.jsonl"));
    assert_int_equal(json_integer_value(json_object_get(second, "row")), 4);
    assert_non_null(strstr(json_string_value(json_object_get(second, "why")), "text"));
    json_decref(j);
}

static void count_line(void *user, const char *line) {
    (void)line;
    ++*(int *)user;
}

/* All are counted, the first of all are listed and the first few told, whatever batch they are read with. */
static void many_bad_rows_are_counted_and_the_first_listed(void **state) {
    enum { ROWS = 9000 };
    ida_buf b = {0};
    for (int i = 0; i < ROWS; i++)
        ida_buf_addf(&b, i < 60 || (i >= 200 && i % 3 == 0) ? "broken %d\n" : "{\"text\":\"%d\"}\n", i);
    put_file(in_dir(*state, "many.jsonl"), b.data, b.len);
    ida_buf_free(&b);
    ida_pack_stats s;
    int lines = 0;
    ida_set_log(count_line, &lines);
    assert_int_equal(pack(in_dir(*state, "many.jsonl"), in_dir(*state, "many"), 0, 0, false, &s), IDA_OK);
    ida_set_log(NULL, NULL);
    assert_int_equal(s.bad_rows, 60 + 2933);
    assert_int_equal(s.documents + s.bad_rows, ROWS);
    assert_int_equal(lines, 21); /* 20 rows, and that there are more */
    json_t *j = manifest(in_dir(*state, "many")), *list = json_object_get(j, "bad_row_list");
    assert_int_equal(json_array_size(list), 100);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 59), "row")), 60);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 60), "row")), 202);
    json_decref(j);
}

/* The failure of whichever thread met it, with the document's number and the thread's own words. */
static void a_document_that_cannot_be_encoded_is_named(void **state) {
    int64_t n;
    char *text = get_file(IDA_TEST_DATA "/tokenizer/trained.json", &n);
    json_t *j = json_loadb(text, (size_t)n, 0, NULL);
    json_t *pre = json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, O]}", "type", "Sequence", "pretokenizers", "type", "Split",
                            "pattern", "Regex", "(a+)+[!?]", "behavior", "Isolated", "invert", 0,
                            json_object_get(j, "pre_tokenizer"));
    assert_int_equal(json_object_set_new(j, "pre_tokenizer", pre), 0);
    char *edited = json_dumps(j, 0);
    ida_tokenizer *t = NULL;
    put_file(in_dir(*state, "slow.json"), edited, (int64_t)strlen(edited));
    assert_int_equal(ida_tokenizer_load(in_dir(*state, "slow.json"), &t), IDA_OK);
    ida_buf b = {0};
    static const char slow[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    for (int i = 0; i < 5000; i++) ida_buf_addf(&b, "{\"text\":\"%s %d\"}\n", i >= 4321 ? slow : "a", i);
    put_file(in_dir(*state, "slow.jsonl"), b.data, b.len);
    const char *const inputs[] = {in_dir(*state, "slow.jsonl")};
    ida_pack_options o = {.inputs = inputs, .n_inputs = 1, .out_dir = in_dir(*state, "slow")};
    int before = ida_get_threads();
    for (int threads = 1; threads <= 3; threads++) {
        ida_set_threads(threads);
        assert_int_equal(ida_data_pack(t, &o, NULL, NULL, NULL), IDA_E_UNSUPPORTED);
        bool named = strstr(ida_last_error(), "document 4322 ") && strstr(ida_last_error(), "too many steps");
        if (!named) fail_msg("%s", ida_last_error());
        assert_false(ida_exists(in_dir(*state, "slow.part")));
    }
    ida_set_threads(before);
    ida_buf_free(&b);
    ida_tokenizer_free(t);
    json_decref(j);
    free(edited);
    free(text);
}

/* Parquet rows become the documents that the same rows give as jsonl; nulls are bad rows. */
static void parquet_is_packed_like_jsonl(void **state) {
    ida_buf b = {0};
    for (int i = 0; i < 100; i++) {
        if (i % 7 == 3) ida_buf_addf(&b, "null\n");
        else ida_buf_addf(&b, "{\"text\":\"");
        for (int k = 0; i % 7 != 3 && i % 11 != 5 && k < i % 5 + 1; k++) ida_buf_addf(&b, "row %d says é\\n", i % 40);
        if (i % 7 != 3) ida_buf_addf(&b, "\"}\n");
    }
    put_file(in_dir(*state, "same.jsonl"), b.data, b.len);
    ida_buf_free(&b);
    ida_pack_stats x, y;
    const char *parquet = IDA_TEST_DATA "/parquet/zstd-v2-dn.parquet";
    assert_int_equal(pack(in_dir(*state, "same.jsonl"), in_dir(*state, "of-jsonl"), 0.2, 0, false, &x), IDA_OK);
    assert_int_equal(pack(parquet, in_dir(*state, "of-parquet"), 0.2, 0, false, &y), IDA_OK);
    assert_memory_equal(&x, &y, sizeof x);
    assert_int_equal(y.bad_rows, 14);
    static const char *const splits[] = {"train", "val"};
    for (int i = 0; i < 2; i++) {
        int64_t n, m;
        int32_t *p = all_tokens(in_dir(*state, "of-jsonl"), splits[i], &n), *q = all_tokens(in_dir(*state, "of-parquet"),
                                                                                            splits[i], &m);
        assert_int_equal(n, m);
        assert_memory_equal(p, q, (size_t)n * sizeof *p);
        free(p);
        free(q);
    }
}

static void duplicates_are_dropped_on_request_and_the_first_stays(void **state) {
    ida_buf b = {0};
    for (int i = 0; i < 3000; i++) ida_buf_addf(&b, "{\"text\":\"document %d\"}\n", i * 7 % 1000);
    put_file(in_dir(*state, "twice.jsonl"), b.data, b.len);
    b.len = 0;
    for (int i = 0; i < 1000; i++) ida_buf_addf(&b, "{\"text\":\"document %d\"}\n", i * 7 % 1000);
    put_file(in_dir(*state, "single.jsonl"), b.data, b.len);
    ida_buf_free(&b);
    ida_pack_stats s;
    const char *in = in_dir(*state, "twice.jsonl");
    ida_pack_options o = {.inputs = &in, .n_inputs = 1, .out_dir = in_dir(*state, "deduped"), .val_fraction = 0.1, .dedup = true};
    assert_int_equal(ida_data_pack(tok, &o, NULL, NULL, &s), IDA_OK);
    assert_int_equal(s.documents, 1000);
    assert_int_equal(s.duplicates, 2000);
    assert_int_equal(pack(in_dir(*state, "single.jsonl"), in_dir(*state, "single"), 0.1, 0, false, NULL), IDA_OK);
    int64_t n, m;
    int32_t *p = all_tokens(in_dir(*state, "deduped"), "train", &n), *q = all_tokens(in_dir(*state, "single"), "train", &m);
    assert_int_equal(n, m);
    assert_memory_equal(p, q, (size_t)n * sizeof *p);
    free(p);
    free(q);
    assert_int_equal(pack(in, in_dir(*state, "kept"), 0.1, 0, false, &s), IDA_OK);
    assert_int_equal(s.documents, 3000);
    assert_int_equal(s.duplicates, 0);
}

static void refused(const char *in, const char *out, double val, int64_t shard, ida_status want) {
    ida_pack_stats s;
    assert_int_equal(pack(in, out, val, shard, false, &s), want);
}

static int64_t entries(void **state) {
    char **names;
    int64_t n;
    assert_int_equal(ida_list_dir(*state, &names, &n), IDA_OK);
    ida_names_free(names, n);
    return n;
}

static void bad_requests_leave_nothing_behind(void **state) {
    const char *in = rows_file(state, "a.jsonl", 0, 30), *out = in_dir(*state, "never");
    put_file(in_dir(*state, "zero.txt"), "", 0);
    put_file(in_dir(*state, "cut.txt.gz"), "\x1F\x8B\x08\0\0\0\0\0\0\3\xFF", 11);
    put_file(in_dir(*state, "a-file"), "x", 1);
    ida_mkdirs(in_dir(*state, "full"));
    put_file(in_dir(*state, "full/x"), "x", 1);
    int64_t before = entries(state);
    refused(in, out, -0.1, 0, IDA_E_ARG);
    refused(in, out, 0.6, 0, IDA_E_ARG);
    refused(in, out, NAN, 0, IDA_E_ARG);
    refused(in, out, 0, -1, IDA_E_ARG);
    refused(in, out, 0, (int64_t)1 << 31, IDA_E_ARG);
    refused(in, NULL, 0, 0, IDA_E_ARG);
    refused(in, in_dir(*state, "full"), 0, 0, IDA_E_ARG);
    refused(in, in_dir(*state, "a-file"), 0, 0, IDA_E_ARG);
    refused(in_dir(*state, "absent.txt"), out, 0, 0, IDA_E_IO);
    refused(in_dir(*state, "zero.txt"), out, 0.1, 0, IDA_E_FORMAT);
    refused(in_dir(*state, "cut.txt.gz"), out, 0.1, 0, IDA_E_FORMAT);
    assert_int_equal(entries(state), before);
    assert_false(ida_exists(out));
}

static int cancel(void *user, const char *what, int64_t done, int64_t total) {
    (void)user; (void)what; (void)done; (void)total;
    return 1;
}

static void cancelling_before_the_split_is_known_leaves_nothing(void **state) {
    const char *in = rows_file(state, "few.jsonl", 0, 19), *out = in_dir(*state, "few");
    ida_pack_options o = {.inputs = &in, .n_inputs = 1, .out_dir = out, .val_fraction = 0.1};
    int64_t before = entries(state);
    assert_int_equal(ida_data_pack(tok, &o, cancel, NULL, NULL), IDA_E_CANCELLED);
    assert_non_null(strstr(ida_last_error(), "nothing was written"));
    assert_int_equal(entries(state), before);
}

static void an_empty_folder_is_taken_and_a_full_one_is_not(void **state) {
    const char *in = rows_file(state, "a.jsonl", 0, 30), *out = in_dir(*state, "given");
    ida_pack_options o = {.inputs = &in, .n_inputs = 1, .out_dir = out, .val_fraction = 0.1};
    assert_int_equal(ida_mkdirs(out), IDA_OK);
    int64_t before = entries(state);
    assert_int_equal(ida_data_pack(tok, &o, NULL, NULL, NULL), IDA_OK);
    assert_int_equal(entries(state), before);
    assert_true(ida_exists(in_dir(out, "manifest.json")));
    assert_int_equal(ida_data_pack(tok, &o, NULL, NULL, NULL), IDA_E_ARG); /* now it is not empty */
    assert_int_equal(pack(in, in_dir(*state, "deep/er/out/"), 0, 0, false, NULL), IDA_OK);
    assert_true(ida_exists(in_dir(*state, "deep/er/out/manifest.json")));
}

static void L36_full_disk_is_reported_and_leaves_nothing(void **state) {
    const char *small = in_dir(*state, "small");
    ida_mkdirs(small);
    if (!mount_small(small)) skip();
    ida_buf b = {0};
    for (int i = 0; i < 60000; i++) ida_buf_addf(&b, "%d word and another %d\n", i, i * 31);
    put_file(in_dir(*state, "large.txt"), b.data, b.len);
    ida_buf_free(&b);
    ida_status st = pack(in_dir(*state, "large.txt"), in_dir(small, "out"), 0.1, 0, false, NULL);
    char **names;
    int64_t n;
    ida_list_dir(small, &names, &n);
    ida_names_free(names, n);
    unmount_small(small);
    assert_int_equal(st, IDA_E_IO);
    assert_int_equal(n, 0);
}

static void inspect_describes_the_set(void **state) {
    char *text = NULL;
    assert_int_equal(pack(rows_file(state, "a.jsonl", 0, 100), in_dir(*state, "look"), 0.2, 50, false, NULL), IDA_OK);
    assert_int_equal(ida_data_inspect(in_dir(*state, "look"), &text), IDA_OK);
    json_t *j = json_loads(text, 0, NULL), *train = json_object_get(json_object_get(j, "splits"), "train");
    assert_int_equal(json_integer_value(json_object_get(j, "vocab_size")), ida_tokenizer_vocab_size(tok));
    assert_int_equal(json_integer_value(json_object_get(train, "largest_id")), ida_tokenizer_eos(tok));
    assert_true(json_integer_value(json_object_get(train, "documents")) > 60);
    json_decref(j);
    ida_string_free(text);
    text = NULL;
    assert_int_not_equal(ida_data_inspect(in_dir(*state, "absent"), &text), IDA_OK);
    /* one flipped bit in a token */
    int64_t n;
    char *raw = get_file(in_dir(*state, "look/train_000001.bin"), &n);
    raw[n - 2] ^= 1;
    put_file(in_dir(*state, "look/train_000001.bin"), raw, n);
    free(raw);
    assert_int_equal(ida_data_inspect(in_dir(*state, "look"), &text), IDA_E_FORMAT);
    assert_non_null(strstr(ida_last_error(), "train_000001.bin"));
    assert_null(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_hold_separator_then_document),
        cmocka_unit_test(stream_does_not_depend_on_shard_size_or_threads),
        cmocka_unit_test(one_token_shards),
        cmocka_unit_test(a_long_document_gives_the_ids_of_the_whole),
        cmocka_unit_test(split_by_hash_depends_on_the_document_only),
        cmocka_unit_test(document_19_20_and_21_switch_the_kind_of_split),
        cmocka_unit_test(few_documents_give_their_tail_to_validation),
        cmocka_unit_test(an_empty_validation_split_is_said),
        cmocka_unit_test(bad_rows_are_left_out_and_counted),
        cmocka_unit_test(many_bad_rows_are_counted_and_the_first_listed),
        cmocka_unit_test(a_document_that_cannot_be_encoded_is_named),
        cmocka_unit_test(parquet_is_packed_like_jsonl),
        cmocka_unit_test(duplicates_are_dropped_on_request_and_the_first_stays),
        cmocka_unit_test(bad_requests_leave_nothing_behind),
        cmocka_unit_test(cancelling_before_the_split_is_known_leaves_nothing),
        cmocka_unit_test(an_empty_folder_is_taken_and_a_full_one_is_not),
        cmocka_unit_test(L36_full_disk_is_reported_and_leaves_nothing),
        cmocka_unit_test(inspect_describes_the_set),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
