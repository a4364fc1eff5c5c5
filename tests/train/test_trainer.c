/* test_trainer.c - a run that is stopped, killed or starved of disk and then resumed ends as if nothing had happened; a run
 * folder is never mixed up or lost. Called with --child DATA RUN it is one such run. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#include "io/checkpoint.h"
#include "io/manifest.h"
#include "tiny_run.h"

/* Stops at the n-th event (0 = never), or with the event of one step. */
typedef struct stopper { int at, n; int64_t at_step; int kinds[6]; } stopper;

static int count(void *user, const ida_train_event *e) {
    stopper *s = user;
    s->kinds[e->kind]++;
    return ++s->n == s->at || (s->at_step > 0 && e->kind == IDA_EVENT_STEP && e->step == s->at_step);
}

static ida_train_options long_run(const char *data, const char *run) {
    ida_train_options o = tiny_options(IDA_MIXER_INTERDOMAIN, data, run);
    o.steps = 100;
    o.eval_every = 20;
    o.eval_tokens = 100;
    o.save_every = 25;
    return o;
}

/* A short one where everything happens often. */
static ida_train_options short_run(const char *data, const char *run) {
    ida_train_options o = tiny_options(IDA_MIXER_INTERDOMAIN, data, run);
    o.steps = 14;
    o.eval_every = 3;
    o.eval_tokens = 48;
    o.save_every = 4;
    o.resume = true;
    return o;
}

static void finish(const ida_train_options *o) {
    ida_train_options again = *o;
    again.resume = true;
    OK(ida_train(&again, NULL, NULL));
}

static void L35_100_steps_equal_50_resume_50_bit_for_bit(void **state) {
    (void)state;
    const char *data = tiny_standard_data(), *whole = tiny_dir("whole");
    ida_train_options o = long_run(data, whole);
    OK(ida_train(&o, NULL, NULL));
    /* At a checkpoint and between them; 6 rows a step, 53 an epoch: cuts lie inside epochs and beside shard edges. */
    static const int64_t cuts[] = { 50, 37, 99, 1 };
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        stopper s = { .at_step = cuts[i] };
        o.out_dir = tiny_dir("parts");
        assert_int_equal(ida_train(&o, count, &s), IDA_E_CANCELLED);
        assert_non_null(strstr(ida_last_error(), "resume"));
        char dir[256];
        snprintf(dir, sizeof dir, "%s/step-%08lld", o.out_dir, (long long)cuts[i]);
        int64_t inside;
        OK(ida_manifest_verify(dir, &inside));
        finish(&o);
        tiny_same_run(whole, o.out_dir, 100);
    }
}

/* What the runs compare: batches that differ, a loss that falls. */
static void the_log_tells_every_step(void **state) {
    (void)state;
    const char *data = tiny_standard_data(), *run = tiny_dir("log");
    ida_train_options o = long_run(data, run);
    stopper s = {0};
    OK(ida_train(&o, count, &s));
    assert_int_equal(s.kinds[IDA_EVENT_STEP], 100);
    assert_int_equal(s.kinds[IDA_EVENT_EVAL], 5);
    assert_int_equal(s.kinds[IDA_EVENT_SAVE], 4);
    assert_int_equal(s.kinds[IDA_EVENT_NOTE], 4);
    char *text = tiny_log(run), *save = NULL, last_hash[32] = "";
    int64_t step = 0, evals = 0, saves = 0, notes = 0, tokens = 0;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_t *j = json_loads(line, 0, NULL);
        const char *kind = json_string_value(json_object_get(j, "event"));
        if (strcmp(kind, "step") == 0) {
            step++;
            assert_int_equal(json_integer_value(json_object_get(j, "step")), step);
            assert_int_equal(json_integer_value(json_object_get(j, "steps")), 100);
            assert_true(json_integer_value(json_object_get(j, "tokens")) > tokens);
            tokens = json_integer_value(json_object_get(j, "tokens"));
            assert_true(json_real_value(json_object_get(j, "loss")) > 0);
            assert_true(json_real_value(json_object_get(j, "grad_norm")) > 0);
            assert_true(json_real_value(json_object_get(j, "lr")) == ida_schedule_lr(&o, step - 1));
            const char *hash = json_string_value(json_object_get(j, "batch_hash"));
            assert_string_not_equal(hash, last_hash);
            snprintf(last_hash, sizeof last_hash, "%s", hash);
        }
        evals += strcmp(kind, "eval") == 0;
        saves += strcmp(kind, "save") == 0;
        notes += strcmp(kind, "note") == 0;
        json_decref(j);
    }
    free(text);
    /* 600 rows are 11 epochs of 53 and 17 more. An epoch is 1269 tokens; one of its rows has 21, the others 24. */
    assert_true(tokens == 11 * 1269 + 17 * 24 || tokens == 11 * 1269 + 17 * 24 - 3);
    assert_int_equal(step, 100);
    assert_int_equal(evals, 5);
    assert_int_equal(saves, 4);
    assert_int_equal(notes, 4);
    int64_t n;
    char dir[256];
    snprintf(dir, sizeof dir, "%s/step-00000100", run);
    char *tokenizer = tiny_read(dir, "tokenizer.json", &n);
    assert_int_equal(n, 24);
    assert_memory_equal(tokenizer, "{\"made\": \"by the test\"}\n", 24);
    ida_free(tokenizer);
    ida_model *m = NULL;
    OK(ida_model_load(run, &m)); /* a run folder is a model */
    assert_int_equal(ida_model_config(m)->max_position, 24);
    ida_model_free(m);
}

static void a_stop_at_any_event_is_made_up_for_by_the_resume(void **state) {
    (void)state;
    const char *data = tiny_standard_data(), *whole = tiny_dir("whole");
    ida_train_options o = short_run(data, whole);
    stopper s = {0};
    OK(ida_train(&o, count, &s));
    int events = s.n;
    o.out_dir = tiny_dir("stopped");
    for (int at = 1; at <= events; at++) {
        OK(ida_remove_tree(o.out_dir));
        s = (stopper){ .at = at };
        assert_int_equal(ida_train(&o, count, &s), IDA_E_CANCELLED);
        s = (stopper){ .at = 2 + at % 7 }; /* and once more */
        ida_status st = ida_train(&o, count, &s);
        assert_true(st == IDA_OK || st == IDA_E_CANCELLED);
        finish(&o);
        tiny_same_run(whole, o.out_dir, 14);
    }
    finish(&o); /* a finished run has nothing to do, and does nothing */
    tiny_same_run(whole, o.out_dir, 14);
}

static int stop_in_evaluation(void *user, const ida_train_event *e) {
    stopper *s = user;
    s->kinds[e->kind]++;
    return e->kind == IDA_EVENT_POLL && s->kinds[IDA_EVENT_POLL] == s->at;
}

static void an_evaluation_is_broken_off_and_made_up_for(void **state) {
    (void)state;
    const char *data = tiny_standard_data(), *whole = tiny_dir("whole");
    ida_train_options o = short_run(data, whole);
    o.eval_tokens = 0; /* several micro-batches */
    stopper s = {0};
    OK(ida_train(&o, stop_in_evaluation, &s));
    assert_true(s.kinds[IDA_EVENT_POLL] >= 4 * s.kinds[IDA_EVENT_EVAL]);
    o.out_dir = tiny_dir("broken_off");
    s = (stopper){ .at = 3 };
    assert_int_equal(ida_train(&o, stop_in_evaluation, &s), IDA_E_CANCELLED);
    assert_int_equal(s.kinds[IDA_EVENT_STEP], 3);
    assert_int_equal(s.kinds[IDA_EVENT_EVAL], 0);
    assert_int_equal(s.kinds[IDA_EVENT_SAVE], 1);
    s = (stopper){ .at = 2 }; /* again, in the evaluation that is made up for */
    assert_int_equal(ida_train(&o, stop_in_evaluation, &s), IDA_E_CANCELLED);
    assert_int_equal(s.kinds[IDA_EVENT_STEP], 0);
    finish(&o);
    tiny_same_run(whole, o.out_dir, 14);
}

static void threads_do_not_change_a_run(void **state) {
    (void)state;
    const char *data = tiny_standard_data(), *one = tiny_dir("one"), *two = tiny_dir("two");
    ida_train_options o = short_run(data, one);
    o.config.d_model = 64;
    o.config.ffn_hidden = 128;
    o.config.state_size = 16;
    int was = ida_get_threads();
    OK(ida_set_threads(1));
    OK(ida_train(&o, NULL, NULL));
    OK(ida_set_threads(2));
    o.out_dir = two;
    OK(ida_train(&o, NULL, NULL));
    OK(ida_set_threads(3));
    finish(&o);
    OK(ida_set_threads(was));
    tiny_same_run(one, two, 14);
}

/* ---------------------------------------------------------------- killed */

static int child(const char *data, const char *run) {
    ida_train_options o = short_run(data, run);
    return ida_train(&o, NULL, NULL) == IDA_OK ? 0 : 1;
}

static pid_t start_child(const char *data, const char *run) {
    pid_t pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "test_trainer", "--child", data, run, (char *)NULL);
        _exit(127);
    }
    assert_true(pid > 0);
    return pid;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void L35_L36_killed_at_random_moments_and_resumed_ends_the_same(void **state) {
    (void)state;
    const char *data = tiny_standard_data(), *whole = tiny_dir("whole"), *run = tiny_dir("killed");
    int status, kills = 0, ended = 0;
    uint64_t seed = (uint64_t)getpid();
    print_message("moments of the kills: seed %llu\n", (unsigned long long)seed);
    double start = seconds();
    assert_int_equal(waitpid(start_child(data, whole), &status, 0) > 0 && status == 0, 1);
    double span = seconds() - start;
    for (uint64_t i = 0; kills < 20 && i < 200; i++) {
        pid_t pid = start_child(data, run);
        double wait = span * (0.1 + 0.9 * ida_uniform(seed, IDA_STREAM_TEST, i));
        struct timespec nap = { (time_t)wait, (long)((wait - floor(wait)) * 1e9) };
        nanosleep(&nap, NULL);
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (WIFSIGNALED(status)) {
            kills++;
        } else { /* it was through: compare, and begin anew */
            assert_int_equal(status, 0);
            ended++;
            tiny_same_run(whole, run, 14);
            OK(ida_remove_tree(run));
        }
    }
    assert_int_equal(kills, 20);
    assert_int_equal(waitpid(start_child(data, run), &status, 0) > 0 && status == 0, 1);
    tiny_same_run(whole, run, 14);
    char **names;
    int64_t n;
    OK(ida_list_dir(run, &names, &n)); /* nothing half-written is left */
    for (int64_t i = 0; i < n; i++) {
        if (strstr(names[i], "tmp") || strstr(names[i], "trash")) fail_msg("left over: %s", names[i]);
    }
    ida_names_free(names, n);
}

/* ---------------------------------------------------------------- no room on the disk */

static void limit_file_size(rlim_t bytes) {
    struct rlimit r;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &r), 0);
    r.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
}

static void L36_a_full_disk_keeps_the_old_checkpoint_and_the_run_resumable(void **state) {
    (void)state;
    const char *data = tiny_standard_data(), *whole = tiny_dir("whole");
    ida_train_options o = short_run(data, whole);
    OK(ida_train(&o, NULL, NULL));
    int64_t log_size, model_size;
    ida_free(tiny_read(whole, "log.jsonl", &log_size));
    ida_free(tiny_read(whole, "step-00000004/model.safetensors", &model_size));
    assert_true(model_size > log_size);
    /* No room for a checkpoint; none for the optimiser's part alone; for half of the log. The last line is cut in its middle. */
    const int64_t limits[] = { log_size + 100, model_size + 100, log_size / 2 + 7 };
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < 3; i++) {
        const char *run = tiny_dir("full");
        o.out_dir = run;
        stopper s = { .at_step = 6 };
        assert_int_equal(ida_train(&o, count, &s), IDA_E_CANCELLED);
        limit_file_size((rlim_t)limits[i]);
        ida_status st = ida_train(&o, NULL, NULL);
        char message[256];
        snprintf(message, sizeof message, "%s", ida_last_error());
        limit_file_size(before.rlim_cur);
        if (st != IDA_E_IO) fail_msg("limit %lld: status %d: %s", (long long)limits[i], st, message);
        assert_non_null(strstr(message, run));
        char *newest = NULL;
        int64_t step = -1;
        OK(ida_checkpoint_find(run, &newest, &step));
        assert_int_equal(step, 6);
        ida_free(newest);
        ida_model *m = NULL;
        OK(ida_model_load(run, &m));
        ida_model_free(m);
        finish(&o);
        tiny_same_run(whole, run, 14);
    }
    signal(SIGXFSZ, SIG_DFL);
}

static void L36_a_quota_of_100_KiB(void **state) {
    (void)state;
    const char *data = tiny_standard_data(), *whole = tiny_dir("whole"), *disk = tiny_dir("disk");
    OK(ida_mkdirs(disk));
    if (mount("none", disk, "tmpfs", 0, "size=100k") != 0) skip(); /* needs the right to mount; the test above does not */
    char run[200];
    snprintf(run, sizeof run, "%s/run", disk);
    ida_train_options o = short_run(data, whole);
    OK(ida_train(&o, NULL, NULL));
    o.out_dir = run;
    ida_status st = ida_train(&o, NULL, NULL);
    char *newest = NULL;
    int64_t step = -1;
    ida_status found = ida_checkpoint_find(run, &newest, &step);
    ida_status grown = mount("none", disk, "tmpfs", MS_REMOUNT, "size=10m") ? IDA_E_IO : ida_train(&o, NULL, NULL);
    bool equal = grown == IDA_OK;
    const char *copy = tiny_dir("off_the_disk");
    char command[600];
    snprintf(command, sizeof command, "cp -r '%s' '%s'", run, copy);
    bool copied = equal && system(command) == 0;
    umount(disk); /* before anything is asserted: a failure would leave it mounted */
    assert_int_equal(st, IDA_E_IO);
    assert_int_equal(found, IDA_OK);
    assert_int_equal(step, newest ? 4 : -1);
    assert_true(equal && copied);
    tiny_same_run(whole, copy, 14);
    ida_free(newest);
}

/* ---------------------------------------------------------------- bad data, lost log */

static void flip_byte(const char *path, long at) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    fputc(c ^ 0xff, f);
    assert_int_equal(fclose(f), 0);
}

static void a_shard_that_differs_from_its_checksum_is_refused(void **state) {
    (void)state;
    static const int64_t train[] = { 240, 500, 0, 1, 529 }, val[] = { 150, 51 };
    static const char *const shards[] = { "train_000001.bin", "val_000000.bin" };
    for (int i = 0; i < 2; i++) {
        const char *data = tiny_data("flipped", train, 5, val, 2), *run = tiny_dir("not_begun");
        char path[300];
        snprintf(path, sizeof path, "%s/%s", data, shards[i]);
        FILE *f = fopen(path, "r+b"); /* another id of the vocabulary: only the checksum tells */
        assert_non_null(f);
        uint8_t id[2];
        assert_int_equal(fseek(f, IDA_SHARD_HEADER_BYTES + 20, SEEK_SET), 0);
        assert_int_equal(fread(id, 1, 2, f), 2);
        id[0] = (uint8_t)((id[0] + 1) % TINY_VOCAB);
        assert_int_equal(fseek(f, IDA_SHARD_HEADER_BYTES + 20, SEEK_SET), 0);
        assert_int_equal(fwrite(id, 1, 2, f), 2);
        assert_int_equal(fclose(f), 0);
        ida_train_options o = short_run(data, run);
        assert_int_equal(ida_train(&o, NULL, NULL), IDA_E_FORMAT);
        assert_non_null(strstr(ida_last_error(), shards[i]));
        assert_non_null(strstr(ida_last_error(), "checksum"));
    }
}

/* Spoils something at one step. */
typedef struct spoiler { int64_t at_step; const char *data, *run; } spoiler;

static int spoil(void *user, const ida_train_event *e) {
    const spoiler *s = user;
    if (e->kind != IDA_EVENT_STEP || e->step != s->at_step) return 0;
    char path[300];
    if (s->run) {
        snprintf(path, sizeof path, "%s/log.jsonl", s->run);
        unlink(path);
        return 0;
    }
    for (int i = 0; i < 5; i++) { /* the high byte of many ids: outside the vocabulary */
        snprintf(path, sizeof path, "%s/train_%06d.bin", s->data, i);
        struct stat st;
        for (long at = IDA_SHARD_HEADER_BYTES + 1; stat(path, &st) == 0 && at < st.st_size; at += 10) flip_byte(path, at);
    }
    return 0;
}

static void a_failure_of_data_or_log_saves_the_steps_done(void **state) {
    (void)state;
    static const int64_t train[] = { 240, 500, 0, 1, 529 }, val[] = { 150, 51 };
    const char *whole = tiny_dir("whole");
    ida_train_options o = short_run(tiny_standard_data(), whole);
    OK(ida_train(&o, NULL, NULL));
    spoiler s = { .at_step = 7, .data = tiny_data("spoiled", train, 5, val, 2) };
    o = short_run(s.data, tiny_dir("data_fails"));
    ida_status st = ida_train(&o, spoil, &s);
    if (st != IDA_E_FORMAT || !strstr(ida_last_error(), "vocabulary")) fail_msg("%d: %s", st, ida_last_error());
    char *newest = NULL;
    int64_t step = -1;
    OK(ida_checkpoint_find(o.out_dir, &newest, &step));
    assert_int_equal(step, 7);
    ida_free(newest);
    o.data_dir = tiny_standard_data(); /* mended: the same set again */
    OK(ida_train(&o, NULL, NULL));
    tiny_same_run(whole, o.out_dir, 14);

    o = short_run(tiny_standard_data(), tiny_dir("log_fails"));
    s = (spoiler){ .at_step = 5, .run = o.out_dir };
    assert_int_equal(ida_train(&o, spoil, &s), IDA_E_IO);
    assert_non_null(strstr(ida_last_error(), "log"));
    OK(ida_checkpoint_find(o.out_dir, &newest, &step));
    assert_int_equal(step, 8); /* where the log was missed: the save due there */
    ida_free(newest);
}

/* ---------------------------------------------------------------- run folders */

static void a_run_continues_only_as_the_run_it_was(void **state) {
    (void)state;
    static const int64_t other_train[] = { 240, 500, 0, 1, 530 }, other_val[] = { 150, 51 };
    static const int64_t train[] = { 240, 500, 0, 1, 529 }, val[] = { 150, 52 };
    const char *data = tiny_standard_data(), *run = tiny_dir("same"), *other = tiny_data("other", other_train, 5, other_val, 2);
    const char *other_eval = tiny_data("other_eval", train, 5, val, 2);
    ida_train_options good = short_run(data, run);
    stopper s = { .at_step = 6 };
    assert_int_equal(ida_train(&good, count, &s), IDA_E_CANCELLED);
    ida_train_options o[20];
    const char *text[20];
    int n = 0;
#define CHANGED(field, value, message) do { o[n] = good; o[n].field = (value); text[n++] = (message); } while (0)
    CHANGED(seed, 43, "options seed was \"42\" in this run, now \"43\"");
    CHANGED(seed, UINT64_MAX, "now \"18446744073709551615\"");
    CHANGED(seq_len, 25, "max_position_embeddings was 24 in this run, now 25");
    CHANGED(batch, 8, "options batch was 6 in this run, now 8");
    CHANGED(micro_batch, 3, "options micro_batch was 2 in this run, now 3");
    CHANGED(steps, 15, "options steps was 14 in this run, now 15");
    CHANGED(warmup_steps, 5, "options warmup_steps was 2 in this run, now 5");
    CHANGED(lr, 0.02, "options lr was 0.01 in this run, now 0.02");
    CHANGED(min_lr, 0, "options min_lr");
    CHANGED(ssm_lr_max, 0.5, "options ssm_lr_max");
    CHANGED(beta1, 0.8, "options beta1");
    CHANGED(beta2, 0.8, "options beta2");
    CHANGED(eps, 1e-7, "options eps");
    CHANGED(weight_decay, 0, "options weight_decay");
    CHANGED(clip, 2, "options clip");
    CHANGED(config.state_size, 8, "mixer.state_size was 4 in this run, now 8");
    CHANGED(config.readout, IDA_READOUT_BILINEAR, "mixer.readout was \"hermitian\" in this run, now \"bilinear\"");
    CHANGED(data_dir, other, "data_hash");
    CHANGED(data_dir, other_eval, "val_hash");
#undef CHANGED
    for (int i = 0; i < n; i++) {
        assert_int_equal(ida_train(&o[i], NULL, NULL), IDA_E_ARG);
        if (!strstr(ida_last_error(), text[i])) fail_msg("\"%s\" is not in \"%s\"", text[i], ida_last_error());
        assert_non_null(strstr(ida_last_error(), "new run"));
    }
    good.eval_every = 5; /* how often to look and to save is free */
    good.eval_tokens = 0;
    good.save_every = 0;
    good.keep = 1;
    good.max_skips = 2;
    OK(ida_train(&good, NULL, NULL));
    char **names;
    int64_t entries, checkpoints = 0;
    OK(ida_list_dir(run, &names, &entries));
    for (int64_t i = 0; i < entries; i++) checkpoints += strncmp(names[i], "step-", 5) == 0;
    ida_names_free(names, entries);
    assert_int_equal(checkpoints, 1);
}

/* What a program needs to go on without the options being typed again. */
static void a_checkpoint_gives_the_options_of_its_run(void **state) {
    (void)state;
    const char *run = tiny_dir("told");
    ida_train_options good = short_run(tiny_standard_data(), run), o;
    char *dir = NULL;
    good.seed = UINT64_MAX;
    good.config.readout = IDA_READOUT_BILINEAR;
    stopper s = {.at_step = 6};
    assert_int_equal(ida_train(&good, count, &s), IDA_E_CANCELLED);
    OK(ida_model_resolve(run, &dir));
    ida_train_defaults(&o);
    o.keep = 9; /* changes no result */
    OK(ida_train_options_load(dir, &o));
    assert_true(o.seed == UINT64_MAX && o.lr == good.lr && o.batch == good.batch && o.seq_len == good.seq_len && o.keep == 9);
    assert_true(o.warmup_steps == ida_train_warmup(&good) && o.config.readout == IDA_READOUT_BILINEAR && !o.data_dir);
    o.data_dir = good.data_dir;
    o.out_dir = run;
    o.resume = true;
    OK(ida_train(&o, NULL, NULL));
    char *path = ida_path_join(dir, "trainer_state.json");
    ida_train_options before = o;
    OK(ida_write_file(path, "{\"format\": \"idattn-trainer\", \"version\": 2}", 42));
    assert_int_equal(ida_train_options_load(dir, &o), IDA_E_UNSUPPORTED);
    OK(ida_write_file(path, "{\"format\": \"other\"}", 19));
    assert_int_equal(ida_train_options_load(dir, &o), IDA_E_FORMAT);
    assert_non_null(strstr(ida_last_error(), path));
    assert_memory_equal(&before, &o, sizeof o);
    ida_free(path);
    ida_string_free(dir);
}

static void copy_file_into(const char *dir, const char *name, const char *text) {
    char *path = ida_path_join(dir, name);
    OK(ida_mkdirs(dir));
    OK(ida_write_file(path, text, strlen(text)));
    ida_free(path);
}

static void a_folder_in_use_is_not_trained_into(void **state) {
    (void)state;
    const char *data = tiny_standard_data(), *run = tiny_dir("used"), *foreign = tiny_dir("foreign"), *fresh = tiny_dir("fresh");
    ida_train_options o = short_run(data, run);
    o.resume = false;
    OK(ida_train(&o, NULL, NULL));
    assert_int_equal(ida_train(&o, NULL, NULL), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "not empty"));
    copy_file_into(foreign, "thesis.txt", "x");
    o.out_dir = foreign;
    assert_int_equal(ida_train(&o, NULL, NULL), IDA_E_ARG);
    o.resume = true;
    assert_int_equal(ida_train(&o, NULL, NULL), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "not a run folder"));

    OK(ida_mkdirs(fresh)); /* empty is as good as absent */
    o.resume = false;
    o.out_dir = fresh;
    ida_trainer *first = NULL, *second = NULL;
    OK(ida_trainer_open(&o, NULL, NULL, &first));
    OK(ida_trainer_step(first));
    o.resume = true;
    assert_int_equal(ida_trainer_open(&o, NULL, NULL, &second), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "another process"));
    ida_trainer_close(first);
    OK(ida_train(&o, NULL, NULL)); /* no checkpoint yet: begins at step 0, the old log goes */
    tiny_same_run(run, fresh, 14);
}

/* Without a checkpoint --resume begins at step 0 and empties the log; not one that would be missed. */
static void a_log_that_would_be_missed_is_not_emptied(void **state) {
    (void)state;
    static const char *const logs[][2] = {
        {"{\"my\":\"log\"}\n", "not the log of a run"},
        {"notes\n{\"event\":\"step\",\"step\":1}\n", "not the log of a run"},
        {"{\"event\":\"note\",\"step\":0}\n{\"event\":\"save\",\"step\":7,\"folder\":\"x\"}\n{\"ev",
         "tells of a checkpoint of step 7"}};
    for (size_t i = 0; i < 3; i++) {
        const char *run = tiny_dir("missed");
        char path[300], *text = NULL;
        int64_t size = 0;
        ida_train_options o = short_run(tiny_standard_data(), run);
        o.resume = true;
        OK(ida_mkdirs(run));
        copy_file_into(run, "log.jsonl", logs[i][0]);
        copy_file_into(run, "latest", "mine");
        assert_int_equal(ida_train(&o, NULL, NULL), IDA_E_ARG);
        assert_non_null(strstr(ida_last_error(), logs[i][1]));
        snprintf(path, sizeof path, "%s/log.jsonl", run);
        OK(ida_read_file(path, 1000, &text, &size));
        assert_int_equal(size, strlen(logs[i][0]));
        assert_memory_equal(text, logs[i][0], strlen(logs[i][0]));
        ida_free(text);
        tiny_clean();
    }
}

/* The library's flock goes through here, so that a test can be the process that comes between a new folder and its lock. */
static void (*between)(const char *run);
static const char *between_run;
int flock(int fd, int operation) {
    void (*f)(const char *) = between;
    between = NULL;
    if (f) f(between_run);
    return (int)syscall(SYS_flock, fd, operation);
}

static void train_whole(const char *run) {
    ida_train_options o = short_run(tiny_standard_data(), run);
    OK(ida_train(&o, NULL, NULL));
}

static int held;
static void hold(const char *run) {
    held = open(run, O_RDONLY | O_DIRECTORY);
    assert_int_equal(syscall(SYS_flock, held, LOCK_EX | LOCK_NB), 0);
}

static void replace(const char *run) {
    assert_int_equal(rmdir(run), 0);
    OK(ida_mkdirs(run));
}

static void replace_always(const char *run) {
    replace(run);
    between = replace_always;
}

static ida_status open_after(void (*f)(const char *), const char *run, ida_trainer **t) {
    ida_train_options o = short_run(tiny_standard_data(), run);
    o.resume = false;
    *t = NULL;
    between = f;
    between_run = run;
    ida_status st = ida_trainer_open(&o, NULL, NULL, t);
    between = NULL;
    return st;
}

static void a_run_that_was_quicker_keeps_its_folder(void **state) {
    (void)state;
    const char *whole = tiny_dir("whole"), *run = tiny_dir("quick"), *empty = tiny_dir("held"), *anew = tiny_dir("anew");
    ida_trainer *t, *second;
    train_whole(whole);
    /* it began and ended: its lock is free, its log is there */
    assert_int_equal(open_after(train_whole, run, &t), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "not empty"));
    tiny_same_run(whole, run, 14);
    /* it holds the lock and has no log yet */
    assert_int_equal(open_after(hold, empty, &t), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "another process is training into this folder"));
    assert_true(ida_exists(empty));
    close(held);
    OK(open_after(NULL, empty, &t));
    ida_trainer_close(t);
    /* it could not begin and took the folder away; another made it anew */
    OK(open_after(replace, anew, &t));
    assert_int_equal(open_after(NULL, anew, &second), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "another process"));
    OK(ida_trainer_step(t));
    ida_trainer_close(t);
    tiny_clean();
    assert_int_equal(open_after(replace_always, anew, &t), IDA_E_IO);
    assert_non_null(strstr(ida_last_error(), "replaced all the time"));
    assert_true(ida_exists(anew));
}

static void keep_line(void *user, const char *line) { snprintf(user, 512, "%s", line); }

static void a_run_may_go_on_in_another_dtype_and_says_so(void **state) {
    (void)state;
    ida_train_options o = short_run(tiny_standard_data(), tiny_dir("dtype"));
    ida_trainer *t = NULL;
    json_t *kept = NULL;
    OK(ida_trainer_open(&o, NULL, NULL, &t));
    OK(ida_resume_state(t, &kept));
    json_t *options = json_object_get(kept, "options");
    OK(ida_resume_check(t, kept, "state"));
    char said[512] = "";
    ida_set_log(keep_line, said);
    json_object_set_new(options, "dtype", json_string("bf16"));
    OK(ida_resume_check(t, kept, "state"));
    assert_non_null(strstr(said, "in bf16 and goes on in f32"));
    json_object_del(options, "dtype"); /* written before there was a choice */
    said[0] = 0;
    OK(ida_resume_check(t, kept, "state"));
    assert_string_equal(said, "");
    t->o.dtype = IDA_BF16;
    OK(ida_resume_check(t, kept, "state"));
    assert_non_null(strstr(said, "in f32 and goes on in bf16"));
    ida_set_log(NULL, NULL);
    json_object_del(kept, "options");
    assert_int_equal(ida_resume_check(t, kept, "state"), IDA_E_FORMAT);
    json_decref(kept);
    ida_trainer_close(t);
}

static void damage(const char *run, int64_t step) {
    char path[256];
    snprintf(path, sizeof path, "%s/step-%08lld/optimizer.safetensors", run, (long long)step);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, -3, SEEK_END);
    fputc('?', f);
    fclose(f);
}

static void damaged_checkpoints_are_passed_over_but_never_started_over(void **state) {
    (void)state;
    const char *data = tiny_standard_data(), *whole = tiny_dir("whole"), *run = tiny_dir("damaged");
    ida_train_options o = short_run(data, whole);
    OK(ida_train(&o, NULL, NULL));
    o.out_dir = run;
    OK(ida_train(&o, NULL, NULL));
    damage(run, 14);
    damage(run, 12);
    ida_status st = ida_train(&o, NULL, NULL); /* from 8; the damaged folders of later steps are in the way and replaced */
    if (st != IDA_OK) fail_msg("%s", ida_last_error());
    tiny_same_run(whole, run, 14);
    for (int64_t step = 4; step <= 12; step += 4) damage(run, step);
    damage(run, 14);
    assert_int_equal(ida_train(&o, NULL, NULL), IDA_E_FORMAT);
    assert_non_null(strstr(ida_last_error(), "none of its 4 checkpoints is whole"));
    tiny_same_log(whole, run); /* and the log is as it was */
}

static int clean(void **state) {
    (void)state;
    tiny_clean();
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "--child") == 0) return child(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(L35_100_steps_equal_50_resume_50_bit_for_bit),
        cmocka_unit_test(the_log_tells_every_step),
        cmocka_unit_test(a_stop_at_any_event_is_made_up_for_by_the_resume),
        cmocka_unit_test(an_evaluation_is_broken_off_and_made_up_for),
        cmocka_unit_test(threads_do_not_change_a_run),
        cmocka_unit_test(L35_L36_killed_at_random_moments_and_resumed_ends_the_same),
        cmocka_unit_test(L36_a_full_disk_keeps_the_old_checkpoint_and_the_run_resumable),
        cmocka_unit_test(L36_a_quota_of_100_KiB),
        cmocka_unit_test(a_shard_that_differs_from_its_checksum_is_refused),
        cmocka_unit_test(a_failure_of_data_or_log_saves_the_steps_done),
        cmocka_unit_test(a_run_continues_only_as_the_run_it_was),
        cmocka_unit_test(a_checkpoint_gives_the_options_of_its_run),
        cmocka_unit_test(a_folder_in_use_is_not_trained_into),
        cmocka_unit_test(a_run_that_was_quicker_keeps_its_folder),
        cmocka_unit_test(a_log_that_would_be_missed_is_not_emptied),
        cmocka_unit_test(a_run_may_go_on_in_another_dtype_and_says_so),
        cmocka_unit_test(damaged_checkpoints_are_passed_over_but_never_started_over),
    };
    return cmocka_run_group_tests(tests, NULL, clean);
}
