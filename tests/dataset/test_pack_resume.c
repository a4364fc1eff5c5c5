/* test_pack_resume.c - a packing that was stopped or killed, at any moment and any number of times, and resumed with any number
 * of threads, gives byte for byte the folder of one that was not. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <zlib.h>

#include "idattn.h"
#include "core/file.h"
#include "core/mem.h"
#include "lib/scratch.h"

static ida_tokenizer *tok;
static const char *inputs[3];
static char paths[3][1024];

/* A batch takes 4096 rows: three batches a file. Every 50th row is bad, every 9th a duplicate of an earlier one. */
static void make_inputs(const char *dir) {
    enum { ROWS = 10000 };
    for (int f = 0; f < 2; f++) {
        ida_buf b = {0};
        for (int i = 0; i < ROWS; i++) {
            if (i % 50 == 7) ida_buf_addf(&b, "bad row %d\n", i);
            else if (i % 9 == 8) ida_buf_addf(&b, "{\"text\":\"File 0, row %d, it's %d.\"}\n", i - 8, (i - 8) * 31);
            else ida_buf_addf(&b, "{\"text\":\"File %d, row %d, it's %d.\"}\n", f, i, i * 31);
        }
        snprintf(paths[f], sizeof paths[f], "%s/%s.jsonl%s", dir, f ? "\xE9" : "0", f ? ".gz" : ""); /* any bytes name a file */
        if (f) {
            gzFile z = gzopen(paths[f], "wb1");
            assert_int_equal(gzwrite(z, b.data, (unsigned)b.len), b.len);
            gzclose(z);
        } else {
            put_file(paths[f], b.data, b.len);
        }
        ida_buf_free(&b);
    }
    snprintf(paths[2], sizeof paths[2], IDA_TEST_DATA "/parquet/snappy-v1-dn.parquet");
    for (int f = 0; f < 3; f++) inputs[f] = paths[f];
}

static int setup(void **state) {
    if (ida_tokenizer_load(IDA_TEST_DATA "/tokenizer/trained.json", &tok) || scratch_setup(state)) return -1;
    make_inputs(*state);
    return 0;
}

static int teardown(void **state) {
    ida_tokenizer_free(tok);
    return scratch_teardown(state);
}

/* in_dir keeps its paths only for a few calls. */
static ida_pack_options options(const char *out_dir, bool resume) {
    static char out[1024];
    snprintf(out, sizeof out, "%s", out_dir);
    return (ida_pack_options){.inputs = inputs, .n_inputs = 3, .out_dir = out, .val_fraction = 0.1, .shard_tokens = 30000,
                              .dedup = true,
                              .resume = resume};
}

static void same_folder(const char *left, const char *right) {
    char **x, **y, a[1024], b[1024];
    snprintf(a, sizeof a, "%s", left);
    snprintf(b, sizeof b, "%s", right);
    int64_t n, m;
    assert_int_equal(ida_list_dir(a, &x, &n), IDA_OK);
    assert_int_equal(ida_list_dir(b, &y, &m), IDA_OK);
    assert_int_equal(n, m);
    for (int64_t i = 0; i < n; i++) {
        int64_t k, l;
        assert_string_equal(x[i], y[i]);
        char *p = get_file(in_dir(a, x[i]), &k), *q = get_file(in_dir(b, y[i]), &l);
        if (k != l || memcmp(p, q, (size_t)k)) fail_msg("%s differs", x[i]);
        free(p);
        free(q);
    }
    ida_names_free(x, n);
    ida_names_free(y, m);
}

static void whole(void **state) {
    ida_pack_stats s;
    ida_pack_options o = options(in_dir(*state, "whole"), false);
    assert_int_equal(ida_data_pack(tok, &o, NULL, NULL, &s), IDA_OK);
    assert_int_equal(s.bad_rows, 400 + 14);
    assert_true(s.duplicates > 2000);
    assert_true(s.shards > 10);
    assert_false(ida_exists(in_dir(*state, "whole.part")));
}

/* Counts packing calls only: skipping what was packed before is not progress. */
static int countdown(void *user, const char *what, int64_t done, int64_t total) {
    (void)done; (void)total;
    return strcmp(what, "packing") == 0 && --*(int *)user == 0;
}

static void stopped_at_every_batch_it_gives_the_same_bytes(void **state) {
    int before = ida_get_threads();
    for (int every = 1; every <= 4; every++) {
        char out[1024], name[32];
        snprintf(name, sizeof name, "stopped-%d", every);
        snprintf(out, sizeof out, "%s", in_dir(*state, name));
        ida_pack_options o = options(out, false);
        int runs = 0;
        for (;; runs++) {
            int left = every;
            ida_set_threads(1 + (runs + every) % 3);
            ida_status st = ida_data_pack(tok, &o, countdown, &left, NULL);
            if (!st) break;
            assert_int_equal(st, IDA_E_CANCELLED);
            assert_non_null(strstr(ida_last_error(), "--resume"));
            assert_false(ida_exists(out));
            o.resume = true;
        }
        assert_int_equal(runs, 4 / every); /* of five batches the last is not stopped */
        same_folder(in_dir(*state, "whole"), out);
        assert_int_equal(ida_remove_tree(out), IDA_OK);
    }
    ida_set_threads(before);
}

static int die(void *user, const char *what, int64_t done, int64_t total) {
    if (countdown(user, what, done, total)) raise(SIGKILL);
    return 0;
}

/* `batches` > 0: dies after that many; else after `us` microseconds, wherever it is. true when it died. */
static bool killed(const ida_pack_options *o, int batches, unsigned us) {
    pid_t child = fork();
    int status;
    assert_true(child >= 0);
    if (child == 0) {
        int left = batches;
        ida_status st = ida_data_pack(tok, o, batches ? die : NULL, &left, NULL);
        if (st) fprintf(stderr, "%s\n", ida_last_error());
        _exit(st ? 1 : 0);
    }
    if (!batches) {
        usleep(us);
        kill(child, SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status)) fail_msg("the child failed");
    return WIFSIGNALED(status);
}

static void killed_at_any_moment_it_gives_the_same_bytes(void **state) {
    char out[1024];
    snprintf(out, sizeof out, "%s", in_dir(*state, "killed"));
    for (int round = 0; round < 3; round++) {
        ida_pack_options o = options(out, true); /* nothing to resume at first: it starts */
        int kills = 0;
        for (int batches = 1; batches < 3; batches++) kills += killed(&o, batches, 0);
        assert_int_equal(kills, 2);
        for (unsigned us = 500 + 300 * (unsigned)round; us < 200000 && !ida_exists(out); us += us / 2) killed(&o, 0, us);
        if (!ida_exists(out)) assert_int_equal(ida_data_pack(tok, &o, NULL, NULL, NULL), IDA_OK);
        same_folder(in_dir(*state, "whole"), out);
        assert_false(ida_exists(in_dir(*state, "killed.part")));
        assert_int_equal(ida_remove_tree(out), IDA_OK);
    }
}

static void stop_early(const ida_pack_options *o, int batches) {
    int left = batches;
    assert_int_equal(ida_data_pack(tok, o, countdown, &left, NULL), IDA_E_CANCELLED);
}

static void refused(const ida_pack_options *o, ida_status want, const char *word) {
    assert_int_equal(ida_data_pack(tok, o, NULL, NULL, NULL), want);
    if (!strstr(ida_last_error(), word)) fail_msg("wanted \"%s\": \"%s\"", word, ida_last_error());
}

/* A kill in the middle of an atomic write leaves the file under its temporary name (core/file.c). */
static void what_a_killed_write_left_is_not_published(void **state) {
    char out[1024], part[1024], left[1200];
    snprintf(out, sizeof out, "%s", in_dir(*state, "left"));
    snprintf(part, sizeof part, "%s", in_dir(*state, "left.part"));
    ida_pack_options o = options(out, false);
    stop_early(&o, 1);
    snprintf(left, sizeof left, "%s/resume.json.tmp-4711-3", part);
    FILE *f = fopen(left, "w");
    assert_non_null(f);
    fclose(f);
    o.resume = true;
    assert_int_equal(ida_data_pack(tok, &o, NULL, NULL, NULL), IDA_OK);
    same_folder(in_dir(*state, "whole"), out);
    assert_int_equal(ida_remove_tree(out), IDA_OK);
}

static void other_options_or_inputs_are_not_a_resume(void **state) {
    ida_pack_options o = options(in_dir(*state, "other"), false);
    stop_early(&o, 1);
    refused(&o, IDA_E_ARG, "--resume");
    o.resume = true;
    o.shard_tokens = 40000;
    refused(&o, IDA_E_ARG, "shard_tokens");
    o.shard_tokens = 30000;
    o.dedup = false;
    refused(&o, IDA_E_ARG, "dedup");
    o.dedup = true;
    o.val_fraction = 0.2;
    refused(&o, IDA_E_ARG, "val_fraction");
    o.val_fraction = 0.1;
    o.n_inputs = 2;
    refused(&o, IDA_E_ARG, "inputs");
    o.n_inputs = 3;
    const char *same = inputs[0], *with_stdin[3] = {inputs[0], "-", inputs[2]};
    inputs[0] = in_dir(*state, "absent");
    refused(&o, IDA_E_IO, "absent");
    inputs[0] = same;
    o.inputs = with_stdin;
    refused(&o, IDA_E_ARG, "standard input");
    o.inputs = inputs;
    /* the file in work is another one now: of another size, of the same size, of the same bytes but another time */
    int64_t n;
    struct stat was;
    assert_int_equal(stat(paths[0], &was), 0);
    char *bytes = get_file(paths[0], &n), *other = malloc((size_t)n);
    put_file(paths[0], bytes, n - 1);
    refused(&o, IDA_E_ARG, "0.jsonl has changed");
    memcpy(other, bytes, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        if (other[i] == '.') other[i] = ',';
    put_file(paths[0], other, n);
    refused(&o, IDA_E_ARG, "0.jsonl has changed");
    put_file(paths[0], bytes, n);
    refused(&o, IDA_E_ARG, "touch -d @");
    /* as that line says */
    assert_int_equal(utimensat(AT_FDCWD, paths[0], (const struct timespec[2]){was.st_atim, was.st_mtim}, 0), 0);
    /* after all these refusals it still goes on */
    assert_int_equal(ida_data_pack(tok, &o, NULL, NULL, NULL), IDA_OK);
    same_folder(in_dir(*state, "whole"), in_dir(*state, "other"));
    free(bytes);
    free(other);
}

/* A file that is finished is not read again: its middle may be rewritten, what tells is the time. */
static void a_finished_input_that_was_written_to_is_not_a_resume(void **state) {
    ida_pack_options o = options(in_dir(*state, "finished"), false);
    struct stat was;
    assert_int_equal(stat(paths[0], &was), 0);
    stop_early(&o, 4); /* in the second file */
    o.resume = true;
    int64_t n;
    char *bytes = get_file(paths[0], &n);
    assert_true(n > 3 * 65536);
    bytes[n / 2] ^= 1;
    put_file(paths[0], bytes, n);
    refused(&o, IDA_E_ARG, "0.jsonl was written to");
    bytes[n / 2] ^= 1;
    bytes[n - 20] ^= 1; /* an end is looked at whatever the time says */
    put_file(paths[0], bytes, n);
    assert_int_equal(utimensat(AT_FDCWD, paths[0], (const struct timespec[2]){was.st_atim, was.st_mtim}, 0), 0);
    refused(&o, IDA_E_ARG, "0.jsonl has changed");
    bytes[n - 20] ^= 1;
    put_file(paths[0], bytes, n);
    assert_int_equal(utimensat(AT_FDCWD, paths[0], (const struct timespec[2]){was.st_atim, was.st_mtim}, 0), 0);
    assert_int_equal(ida_data_pack(tok, &o, NULL, NULL, NULL), IDA_OK);
    same_folder(in_dir(*state, "whole"), in_dir(*state, "finished"));
    free(bytes);
}

static void a_pipe_cannot_be_resumed(void **state) {
    char path[1024];
    snprintf(path, sizeof path, "%s", in_dir(*state, "pipe.jsonl"));
    assert_int_equal(mkfifo(path, 0600), 0);
    const char *const one[1] = {path};
    ida_pack_options o = options(in_dir(*state, "piped"), true);
    o.inputs = one;
    o.n_inputs = 1;
    refused(&o, IDA_E_ARG, "pipe");
    assert_false(ida_exists(in_dir(*state, "piped.part")));
}

static void a_damaged_state_is_an_error(void **state) {
    ida_pack_options o = options(in_dir(*state, "damaged"), false);
    int64_t n, m;
    char *journal, *shard;
    stop_early(&o, 3);
    o.resume = true;
    shard = get_file(in_dir(*state, "damaged.part/train_000000.bin"), &m);
    put_file(in_dir(*state, "damaged.part/train_000000.bin"), shard, m - 2);
    refused(&o, IDA_E_FORMAT, "shard 0");
    put_file(in_dir(*state, "damaged.part/train_000000.bin"), shard, m);
    journal = get_file(in_dir(*state, "damaged.part/resume.json"), &n);
    put_file(in_dir(*state, "damaged.part/resume.json"), journal, n / 2);
    refused(&o, IDA_E_FORMAT, "resume.json");
    static const struct { const char *word, *from, *to; } lies[] = {
        {"counts", "\"documents\":", "\"documents\":1"}, /* whole JSON, from which a false manifest would be made */
        {"train shard 0", "train_000000.bin", "train_000001.bin"},
        {"train shard 0", "\"xxh3\":\"", "\"xxh3\":\"z"}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        char *at = strstr(journal, lies[i].from), *lie;
        assert_non_null(at);
        assert_true(asprintf(&lie, "%.*s%s%s", (int)(at - journal), journal, lies[i].to, at + strlen(lies[i].from)) > 0);
        put_file(in_dir(*state, "damaged.part/resume.json"), lie, (int64_t)strlen(lie));
        refused(&o, IDA_E_FORMAT, lies[i].word);
        free(lie);
    }
    put_file(in_dir(*state, "damaged.part/resume.json"), journal, n);
    assert_int_equal(truncate(in_dir(*state, "damaged.part/seen.bin"), 64), 0);
    refused(&o, IDA_E_FORMAT, "seen.bin");
    free(journal);
    free(shard);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole),
        cmocka_unit_test(stopped_at_every_batch_it_gives_the_same_bytes),
        cmocka_unit_test(killed_at_any_moment_it_gives_the_same_bytes),
        cmocka_unit_test(what_a_killed_write_left_is_not_published),
        cmocka_unit_test(other_options_or_inputs_are_not_a_resume),
        cmocka_unit_test(a_finished_input_that_was_written_to_is_not_a_resume),
        cmocka_unit_test(a_pipe_cannot_be_resumed),
        cmocka_unit_test(a_damaged_state_is_an_error),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
