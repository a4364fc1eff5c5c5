/* test_checkpoint.c - checkpoints under kill -9, full disks and damage: the newest whole one always loads. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/mem.h"
#include "core/rng.h"
#include "io/checkpoint.h"
#include "io/folder.h"
#include "io/manifest.h"
#include "lib/scratch.h"

typedef struct run {
    ida_model *model;
    float *m, *v;
} run;

/* d and vocab set the size: about 200 KB of files at 16, 32. */
static void run_open(run *r, int64_t d, int64_t vocab) {
    ida_config cfg;
    assert_int_equal(ida_config_preset("tiny", IDA_MIXER_INTERDOMAIN, &cfg), IDA_OK);
    cfg.d_model = d;
    cfg.vocab_size = vocab;
    cfg.n_layers = 1;
    cfg.state_size = 4;
    assert_int_equal(ida_model_new(&cfg, ida_cpu_device(), NULL, &r->model), IDA_OK);
    assert_int_equal(IDA_CALLOC(r->m, r->model->table.block, "test"), IDA_OK);
    assert_int_equal(IDA_CALLOC(r->v, r->model->table.block, "test"), IDA_OK);
}

static void run_close(run *r) {
    ida_model_free(r->model);
    ida_free(r->m);
    ida_free(r->v);
}

static float value_at(int64_t step, int64_t i, int which) { return (float)(step * 1000 + which) + (float)(i % 97) / 128.0f; }

static ida_status save(run *r, const char *dir, int64_t step, int64_t keep) {
    for (int64_t i = 0; i < r->model->table.block; i++) {
        r->model->params[i] = value_at(step, i, 1);
        r->m[i] = value_at(step, i, 2);
        r->v[i] = value_at(step, i, 3);
    }
    json_t *state = json_pack("{s:I}", "step", (json_int_t)step);
    ida_checkpoint c = {.model = r->model, .m = r->m, .v = r->v, .state = state};
    ida_status st = ida_checkpoint_save(dir, step, &c, keep);
    json_decref(state);
    return st;
}

static ida_status load(run *r, const char *dir, json_t **state) {
    return ida_checkpoint_load(dir, r->model, r->m, r->v, state);
}

/* Loads `dir` and checks every value against what `step` wrote. */
static void assert_holds_step(run *r, const char *dir, int64_t step) {
    int64_t block = r->model->table.block;
    for (int64_t i = 0; i < block; i++) r->model->params[i] = r->m[i] = r->v[i] = -1;
    json_t *state = NULL;
    if (load(r, dir, &state) != IDA_OK) fail_msg("%s", ida_last_error());
    assert_int_equal(json_integer_value(json_object_get(state, "step")), step);
    json_decref(state);
    for (int64_t k = 0; k < r->model->table.n; k++) {
        const ida_param *p = &r->model->table.params[k];
        for (int64_t i = p->offset; i < p->offset + p->numel; i++)
            assert_true(r->model->params[i] == value_at(step, i, 1) && r->m[i] == value_at(step, i, 2) &&
                        r->v[i] == value_at(step, i, 3));
        int64_t end = k + 1 < r->model->table.n ? p[1].offset : block;
        for (int64_t i = p->offset + p->numel; i < end; i++) assert_true(r->model->params[i] == 0 && r->m[i] == 0 &&
                                                                         r->v[i] == 0);
    }
}

static void assert_newest(run *r, const char *run_dir, int64_t step) {
    char *dir = NULL;
    int64_t found = -1;
    if (ida_checkpoint_find(run_dir, &dir, &found) != IDA_OK) fail_msg("%s", ida_last_error());
    assert_non_null(dir);
    assert_int_equal(found, step);
    assert_holds_step(r, dir, step);
    ida_free(dir);
}

static const char *step_dir(const char *run_dir, int64_t step) {
    static char path[1200];
    snprintf(path, sizeof path, "%s/step-%08lld", run_dir, (long long)step);
    return path;
}

static void run_dir_of(char out[1024], void **state, const char *name) { snprintf(out, 1024, "%s", in_dir(*state, name)); }

static ida_status verified(const char *dir) {
    int64_t step;
    return ida_manifest_verify(dir, &step);
}

static void a_saved_checkpoint_loads_bit_for_bit(void **state) {
    char dir[1024];
    run_dir_of(dir, state, "trip");
    run r;
    run_open(&r, 16, 32);
    assert_int_equal(save(&r, dir, 3, 0), IDA_OK);
    assert_newest(&r, dir, 3);
    assert_int_equal(save(&r, dir, 12, 0), IDA_OK);
    assert_int_equal(save(&r, dir, 7, 0), IDA_OK); /* order is by step, not by time */
    assert_newest(&r, dir, 12);
    assert_int_equal(verified(step_dir(dir, 3)), IDA_OK);
    char path[1300];
    snprintf(path, sizeof path, "%s/latest", dir);
    int64_t n;
    char *latest = get_file(path, &n);
    assert_string_equal(latest, "step-00000007\n");
    free(latest);
    char *resolved = NULL;
    assert_int_equal(ida_model_resolve(dir, &resolved), IDA_OK);
    assert_string_equal(resolved, step_dir(dir, 12));
    ida_free(resolved);
    run_close(&r);
}

static void a_file_that_cannot_be_read_is_no_damage(void **state) {
    char dir[1024], path[1300], *found = NULL;
    int64_t step;
    run_dir_of(dir, state, "unreadable");
    run r;
    run_open(&r, 16, 32);
    assert_int_equal(save(&r, dir, 3, 0), IDA_OK);
    assert_int_equal(save(&r, dir, 4, 0), IDA_OK);
    snprintf(path, sizeof path, "%s/model.safetensors", step_dir(dir, 4));
    assert_int_equal(unlink(path), 0);
    assert_newest(&r, dir, 3); /* not there: damage */
    assert_int_equal(symlink("model.safetensors", path), 0);
    assert_int_equal(ida_checkpoint_find(dir, &found, &step), IDA_E_IO); /* a link to itself: the machine refuses */
    assert_null(found);
    run_close(&r);
}

static void an_empty_or_absent_run_has_no_checkpoint(void **state) {
    char dir[1024], *found = (char *)"x";
    int64_t step;
    run_dir_of(dir, state, "empty");
    assert_int_equal(ida_checkpoint_find(dir, &found, &step), IDA_OK);
    assert_null(found);
    assert_int_equal(ida_mkdirs(dir), IDA_OK);
    static const char *const not_ours[] = {"step-00000001.tmp", "step-00000002.trash", "step-3", "step-0000000x",
                                           "step-000000011", "other"};
    for (size_t i = 0; i < 6; i++) {
        char path[1200];
        snprintf(path, sizeof path, "%s/%s", dir, not_ours[i]);
        assert_int_equal(ida_mkdirs(path), IDA_OK);
    }
    found = (char *)"x";
    assert_int_equal(ida_checkpoint_find(dir, &found, &step), IDA_OK);
    assert_null(found);
    char *resolved = NULL;
    assert_int_equal(ida_model_resolve(dir, &resolved), IDA_E_FORMAT);
    assert_null(resolved);
    assert_int_equal(ida_model_resolve(in_dir(*state, "nowhere"), &resolved), IDA_E_IO);
}

static void pruning_keeps_the_newest_and_cleans_what_was_interrupted(void **state) {
    char dir[1024], path[1300];
    run_dir_of(dir, state, "prune");
    run r;
    run_open(&r, 16, 32);
    static const char *const stale[] = {"step-00000009.tmp/model.safetensors", "step-00000001.trash/config.json",
                                        "latest.tmp-1-1"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, stale[i]);
        char *slash = strrchr(path, '/');
        *slash = '\0';
        assert_int_equal(ida_mkdirs(path), IDA_OK);
        *slash = '/';
        put_file(path, "half", 4);
    }
    snprintf(path, sizeof path, "%s/log.jsonl", dir);
    put_file(path, "{}\n", 3);
    for (int64_t s = 1; s <= 5; s++) assert_int_equal(save(&r, dir, s, 2), IDA_OK);
    char **names = NULL;
    int64_t n = 0;
    assert_int_equal(ida_list_dir(dir, &names, &n), IDA_OK);
    assert_int_equal(n, 4);
    assert_string_equal(names[0], "latest");
    assert_string_equal(names[1], "log.jsonl");
    assert_string_equal(names[2], "step-00000004");
    assert_string_equal(names[3], "step-00000005");
    ida_names_free(names, n);
    run_close(&r);
}

static void pruning_leaves_what_is_no_checkpoint(void **state) {
    char dir[1024], path[1300];
    run_dir_of(dir, state, "others-steps");
    run r;
    run_open(&r, 16, 32);
    static const char *const kept[] = {"step-00000001/results.txt", "step-mine.tmp/notes.txt", "step-00000003.bak/notes.txt"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, kept[i]);
        char *slash = strrchr(path, '/');
        *slash = '\0';
        assert_int_equal(ida_mkdirs(path), IDA_OK);
        *slash = '/';
        put_file(path, "mine", 4);
    }
    snprintf(path, sizeof path, "%s/step-00000002", dir);
    assert_int_equal(symlink("step-00000005", path), 0); /* whose manifest is of another step */
    for (int64_t s = 4; s <= 7; s++) assert_int_equal(save(&r, dir, s, 2), IDA_OK);
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, kept[i]);
        assert_true(ida_exists(path));
    }
    snprintf(path, sizeof path, "%s/step-00000002", dir);
    char target[64];
    assert_true(readlink(path, target, sizeof target) > 0);
    assert_false(ida_exists(step_dir(dir, 5)));
    assert_true(ida_exists(step_dir(dir, 6)) && ida_exists(step_dir(dir, 7)));
    run_close(&r);
}

static void count_line(void *user, const char *line) {
    (void)line;
    ++*(int *)user;
}

/* A step folder that a person names is held against its manifest, as far as the model goes. */
static void a_model_is_loaded_only_as_its_manifest_says(void **state) {
    char dir[1024], folder[1200], path[1400];
    run_dir_of(dir, state, "named");
    run r;
    ida_model *m = NULL;
    run_open(&r, 16, 32);
    assert_int_equal(save(&r, dir, 1, 0), IDA_OK);
    snprintf(folder, sizeof folder, "%s", step_dir(dir, 1));
    static const char *const files[] = {"config.json", "model.safetensors", "manifest.json"};
    for (size_t f = 0; f < 3; f++) {
        int64_t n;
        snprintf(path, sizeof path, "%s/%s", folder, files[f]);
        char *p = get_file(path, &n);
        p[n - 6] ^= 1; /* of a weight: its lowest bits, so finite still */
        put_file(path, p, f == 2 ? n / 2 : n);
        assert_int_equal(ida_model_load(folder, &m), IDA_E_FORMAT);
        assert_null(m);
        assert_non_null(strstr(ida_last_error(), files[f]));
        assert_non_null(strstr(ida_last_error(), "remove manifest.json if the change was meant"));
        p[n - 6] ^= 1;
        put_file(path, p, n);
        free(p);
    }
    /* what a model is not made of is not looked at */
    snprintf(path, sizeof path, "%s/optimizer.safetensors", folder);
    assert_int_equal(unlink(path), 0);
    if (ida_model_load(folder, &m)) fail_msg("%s", ida_last_error());
    ida_model_free(m);
    m = NULL;
    /* nor is there anything to look at with another program's manifest, or with none */
    snprintf(path, sizeof path, "%s/config.json", folder);
    int64_t n;
    char *config = get_file(path, &n);
    char *space = strchr(config, ' ');
    *space = '\t'; /* as good as before */
    put_file(path, config, n);
    free(config);
    assert_int_equal(ida_model_load(folder, &m), IDA_E_FORMAT);
    snprintf(path, sizeof path, "%s/trainer_state.json", folder);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/manifest.json", folder);
    put_file(path, "{\"name\": \"an app\"}", 18);
    if (ida_model_load(folder, &m)) fail_msg("%s", ida_last_error());
    ida_model_free(m);
    assert_int_equal(unlink(path), 0);
    if (ida_model_load(folder, &m)) fail_msg("%s", ida_last_error());
    ida_model_free(m);
    run_close(&r);
}

/* manifest.json is a common name. Beside a trainer_state.json one that does not list the weights is damage, else it is another
 * program's. */
static void another_programs_manifest_is_in_nobodys_way(void **state) {
    static const char *const others[] = {"", "not JSON", "\xef\xbb\xbf{}", "// a comment\n{}", "[1]", "{\"files\": 3}", "{}",
                                         "{\"version\": 1, \"step\": 1, \"files\": {}}",
                                         "{\"a\": 1, \"a\": 2}",
                                         "{\"files\": {\"model.safetensors\": \"sha256\"}}",
                                         "{\"files\": {\"model.safetensors\": {\"size\": 3}}}"};
    enum { N = sizeof others / sizeof *others, HUGE_BYTES = (16 << 20) + 1 };
    char folder[1024], path[1100], trainer_state[1100];
    run_dir_of(folder, state, "others");
    run r;
    ida_model *m = NULL;
    run_open(&r, 16, 32);
    memset(r.model->params, 0, (size_t)r.model->table.block * sizeof *r.model->params);
    assert_int_equal(ida_model_save(r.model, folder), IDA_OK);
    snprintf(path, sizeof path, "%s/manifest.json", folder);
    snprintf(trainer_state, sizeof trainer_state, "%s/trainer_state.json", folder);
    for (int beside = 0; beside < 2; beside++) {
        if (beside) put_file(trainer_state, "{}", 2);
        for (size_t i = 0; i < N + 4; i++) {
            if (i < N) put_file(path, others[i], (int64_t)strlen(others[i]));
            else if (i == N) put_file(path, " ", 1);
            else if (i == N + 1) assert_int_equal(ida_mkdirs(path), IDA_OK);
            else assert_int_equal(symlink(i == N + 2 ? "manifest.json" : "nowhere", path), 0);
            if (i == N) assert_int_equal(truncate(path, HUGE_BYTES), 0);
            m = NULL;
            const bool loop = i == N + 2; /* the machine refuses, as above */
            if (ida_model_load(folder, &m) != (!beside ? IDA_OK : loop ? IDA_E_IO : IDA_E_FORMAT))
                fail_msg("%d, %zu: %s", beside, i, ida_last_error());
            if (beside && !loop) assert_non_null(strstr(ida_last_error(), "remove manifest.json if the change was meant"));
            ida_model_free(m);
            assert_int_equal(ida_remove_tree(path), IDA_OK);
        }
    }
    static const char newer[] = "{\"version\": 2, \"files\": {\"model.safetensors\": {\"xxh3\": \"0\"}}}";
    put_file(path, newer, sizeof newer - 1);
    assert_int_equal(unlink(trainer_state), 0);
    assert_int_equal(ida_model_load(folder, &m), IDA_E_UNSUPPORTED);
    assert_non_null(strstr(ida_last_error(), "take a newer program, or remove manifest.json if the model may be read unchecked"));
    run_close(&r);
}

static void a_model_saved_over_a_checkpoint_loads(void **state) {
    char dir[1024], folder[1200], path[1400];
    run_dir_of(dir, state, "over");
    run r;
    ida_model *m = NULL;
    run_open(&r, 16, 32);
    for (int how = 0; how < 3; how++) { /* a manifest that is whole, damaged, another program's */
        assert_int_equal(save(&r, dir, 1, 0), IDA_OK);
        snprintf(folder, sizeof folder, "%s", step_dir(dir, 1));
        snprintf(path, sizeof path, "%s/manifest.json", folder);
        if (how == 1) put_file(path, "{", 1);
        if (how == 2) {
            put_file(path, "{\"name\": \"an app\"}", 18);
            char state_file[1400];
            snprintf(state_file, sizeof state_file, "%s/trainer_state.json", folder);
            assert_int_equal(unlink(state_file), 0);
        }
        r.model->params[0] = 5;
        assert_int_equal(ida_model_save(r.model, folder), IDA_OK);
        assert_int_equal(ida_exists(path), how == 2);
        if (ida_model_load(folder, &m)) fail_msg("%s", ida_last_error());
        assert_true(m->params[0] == 5);
        assert_string_equal(ida_model_folder(m), folder);
        ida_model_free(m);
        m = NULL;
    }
    assert_int_equal(save(&r, dir, 1, 0), IDA_OK);
    if (ida_model_load(dir, &m)) fail_msg("%s", ida_last_error());
    assert_string_equal(ida_model_folder(m), folder);
    ida_model_free(m);
    assert_null(ida_model_folder(r.model));
    assert_null(ida_model_folder(NULL));
    run_close(&r);
}

/* One byte of each file flipped, each file cut, each file gone: refused by name, and the older checkpoint is taken. */
static void L36_damaged_checkpoints_are_refused_and_the_older_one_is_taken(void **state) {
    char dir[1024], path[1400];
    run_dir_of(dir, state, "damage");
    run r;
    run_open(&r, 16, 32);
    static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors", "optimizer.safetensors",
                                        "trainer_state.json", "manifest.json"};
    int lines = 0;
    ida_set_log(count_line, &lines);
    assert_int_equal(save(&r, dir, 1, 0), IDA_OK);
    for (size_t f = 0; f < 6; f++) {
        for (int how = 0; how < 4; how++) {
            assert_int_equal(save(&r, dir, 2, 0), IDA_OK); /* replaces the damaged one */
            assert_newest(&r, dir, 2);
            snprintf(path, sizeof path, "%s/%s", step_dir(dir, 2), files[f]);
            int64_t n;
            char *p = get_file(path, &n);
            p[n / 2] ^= 4;
            if (how == 0) put_file(path, p, n);
            p[n / 2] ^= 4;
            if (how == 1) put_file(path, p, n - 3);
            if (how == 2) put_file(path, p, 0);
            if (how == 3) assert_int_equal(unlink(path), 0);
            free(p);
            assert_int_not_equal(verified(step_dir(dir, 2)), IDA_OK);
            assert_non_null(strstr(ida_last_error(), files[f]));
            lines = 0;
            assert_newest(&r, dir, 1);
            assert_int_equal(lines, 1);
        }
    }
    /* a whole folder under the wrong step's name */
    assert_int_equal(save(&r, dir, 2, 0), IDA_OK);
    snprintf(path, sizeof path, "%s", step_dir(dir, 2));
    assert_int_equal(rename(path, step_dir(dir, 9)), 0);
    assert_newest(&r, dir, 1);
    /* nothing whole left: an error, not a fresh start */
    snprintf(path, sizeof path, "%s/model.safetensors", step_dir(dir, 1));
    put_file(path, "x", 1);
    char *found = NULL;
    int64_t step;
    assert_int_equal(ida_checkpoint_find(dir, &found, &step), IDA_E_FORMAT);
    assert_null(found);
    assert_non_null(strstr(ida_last_error(), "none of its 2 checkpoints"));
    ida_set_log(NULL, NULL);
    run_close(&r);
}

static void a_published_checkpoint_is_never_changed(void **state) {
    char dir[1024];
    run_dir_of(dir, state, "published");
    run r;
    run_open(&r, 16, 32);
    assert_int_equal(save(&r, dir, 5, 0), IDA_OK);
    assert_int_equal(save(&r, dir, 5, 0), IDA_OK); /* the same content again is fine */
    ida_checkpoint c = {.model = r.model, .m = r.m, .v = r.v, .state = json_pack("{s:i}", "step", 6)};
    assert_int_equal(ida_checkpoint_save(dir, 5, &c, 0), IDA_E_IO);
    json_decref((json_t *)(uintptr_t)c.state);
    assert_newest(&r, dir, 5);
    assert_false(ida_exists(in_dir(*state, "published/step-00000005.tmp")));
    run_close(&r);
}

static void a_later_damaged_checkpoint_does_not_push_out_a_good_one(void **state) {
    char dir[1024], path[1400];
    run_dir_of(dir, state, "setback");
    run r;
    run_open(&r, 16, 32);
    assert_int_equal(save(&r, dir, 20, 0), IDA_OK);
    snprintf(path, sizeof path, "%s/config.json", step_dir(dir, 20));
    put_file(path, "x", 1);
    assert_int_equal(save(&r, dir, 10, 1), IDA_OK);
    assert_int_equal(save(&r, dir, 15, 1), IDA_OK);
    assert_newest(&r, dir, 15);
    assert_int_equal(save(&r, dir, 20, 1), IDA_OK);
    assert_newest(&r, dir, 20);
    run_close(&r);
}

static void another_configuration_is_refused_by_its_key(void **state) {
    char dir[1024];
    run_dir_of(dir, state, "config");
    run r, other;
    run_open(&r, 16, 32);
    run_open(&other, 16, 33);
    assert_int_equal(save(&r, dir, 1, 0), IDA_OK);
    json_t *s = NULL;
    assert_int_equal(load(&other, step_dir(dir, 1), &s), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "vocab_size"));
    assert_null(s);
    run_close(&r);
    run_close(&other);
}

static void values_that_are_not_finite_are_refused_by_name(void **state) {
    char dir[1024];
    run_dir_of(dir, state, "nan");
    run r;
    run_open(&r, 16, 32);
    assert_int_equal(save(&r, dir, 1, 0), IDA_OK);
    const ida_param *p = &r.model->table.params[2];
    r.v[p->offset + 5] = (float)(0.0 / (double)(r.v[0] * 0));
    ida_checkpoint c = {.model = r.model, .m = r.m, .v = r.v, .state = json_pack("{s:i}", "step", 2)};
    assert_int_equal(ida_checkpoint_save(dir, 2, &c, 0), IDA_OK);
    json_decref((json_t *)(uintptr_t)c.state);
    json_t *s = NULL;
    assert_int_equal(load(&r, step_dir(dir, 2), &s), IDA_E_NUMERIC);
    assert_non_null(strstr(ida_last_error(), p->name));
    assert_non_null(strstr(ida_last_error(), "element 5 "));
    run_close(&r);
}

/* The child saves step after step and reports each finished one; the parent kills it at a random moment. */
static void child_saves(const char *dir, int64_t first, int fd) {
    run r;
    run_open(&r, 16, 32);
    int64_t ready = first - 1;
    if (write(fd, &ready, sizeof ready) != sizeof ready) _exit(2);
    for (int64_t s = first;; s++) {
        if (save(&r, dir, s, 2) != IDA_OK) _exit(1);
        if (write(fd, &s, sizeof s) != sizeof s) _exit(2);
    }
}

static void L36_kill_9_at_random_moments_never_loses_the_newest_whole_checkpoint(void **state) {
    char dir[1024];
    run_dir_of(dir, state, "kill");
    run r;
    run_open(&r, 16, 32);
    double t = ida_now();
    assert_int_equal(save(&r, dir, 1, 2), IDA_OK);
    double one_save = ida_now() - t;
    int64_t newest = 1, inside = 0;
    enum { KILLS = 24 };
    for (uint64_t k = 0; k < KILLS; k++) {
        int fd[2];
        assert_int_equal(pipe(fd), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            close(fd[0]);
            child_saves(dir, newest + 1, fd[1]);
        }
        close(fd[1]);
        int64_t done, s;
        assert_int_equal(read(fd[0], &done, sizeof done), sizeof done); /* it has begun */
        usleep((useconds_t)(1e6 * (0.002 + ida_uniform(99, IDA_STREAM_TEST, k) * (3 * one_save < 0.25 ? 3 * one_save : 0.25))));
        assert_int_equal(kill(pid, SIGKILL), 0);
        int ws;
        assert_int_equal(waitpid(pid, &ws, 0), pid);
        assert_true(WIFSIGNALED(ws) && WTERMSIG(ws) == SIGKILL);
        while (read(fd[0], &s, sizeof s) == sizeof s) done = s;
        close(fd[0]);
        char *found = NULL;
        if (ida_checkpoint_find(dir, &found, &s) != IDA_OK) fail_msg("%s", ida_last_error());
        assert_non_null(found);
        assert_in_range(s, done, done + 1); /* the last reported one, or the one that was published but not yet reported */
        assert_holds_step(&r, found, s);
        ida_free(found);
        newest = s;
        char **names = NULL;
        int64_t n = 0;
        assert_int_equal(ida_list_dir(dir, &names, &n), IDA_OK);
        for (int64_t i = 0; i < n; i++) inside += strstr(names[i], ".tmp") != NULL || strstr(names[i], ".trash") != NULL;
        ida_names_free(names, n);
    }
    assert_true(inside > 0); /* some of the kills did hit a save half-way */
    assert_int_equal(save(&r, dir, newest + 1, 1), IDA_OK);
    assert_newest(&r, dir, newest + 1);
    run_close(&r);
}

/* Saving into too little space fails with a clear line, leaves the older checkpoint loading and no rest behind. */
static void check_no_space(const char *dir) {
    run small, big;
    run_open(&small, 16, 32);
    assert_int_equal(save(&small, dir, 1, 0), IDA_OK);
    run_open(&big, 16, 8000); /* over 1 MiB of weights */
    int64_t before, after;
    char **names = NULL;
    assert_int_equal(ida_list_dir(dir, &names, &before), IDA_OK);
    ida_names_free(names, before);
    assert_int_equal(save(&big, dir, 2, 1), IDA_E_IO);
    assert_non_null(strstr(ida_last_error(), "step 2 was not saved"));
    assert_non_null(strstr(ida_last_error(), "model.safetensors"));
    assert_int_equal(ida_list_dir(dir, &names, &after), IDA_OK);
    ida_names_free(names, after);
    assert_int_equal(after, before);
    assert_newest(&small, dir, 1);
    assert_int_equal(save(&small, dir, 3, 1), IDA_OK); /* and the run can go on */
    assert_newest(&small, dir, 3);
    run_close(&small);
    run_close(&big);
}

static void L36_size_limit_of_1_MiB_keeps_the_older_checkpoint(void **state) {
    char dir[1024];
    run_dir_of(dir, state, "quota");
    struct rlimit old, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = 1 << 20;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    check_no_space(dir);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
}

static void L36_full_disk_of_1_MiB_keeps_the_older_checkpoint(void **state) {
    char dir[1024];
    run_dir_of(dir, state, "disk");
    assert_int_equal(ida_mkdirs(dir), IDA_OK);
    if (!mount_small(dir)) skip(); /* needs root; the size limit above covers the code path */
    check_no_space(dir);
    unmount_small(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_saved_checkpoint_loads_bit_for_bit),
        cmocka_unit_test(a_model_is_loaded_only_as_its_manifest_says),
        cmocka_unit_test(another_programs_manifest_is_in_nobodys_way),
        cmocka_unit_test(a_model_saved_over_a_checkpoint_loads),
        cmocka_unit_test(a_file_that_cannot_be_read_is_no_damage),
        cmocka_unit_test(an_empty_or_absent_run_has_no_checkpoint),
        cmocka_unit_test(pruning_keeps_the_newest_and_cleans_what_was_interrupted),
        cmocka_unit_test(pruning_leaves_what_is_no_checkpoint),
        cmocka_unit_test(L36_damaged_checkpoints_are_refused_and_the_older_one_is_taken),
        cmocka_unit_test(a_published_checkpoint_is_never_changed),
        cmocka_unit_test(a_later_damaged_checkpoint_does_not_push_out_a_good_one),
        cmocka_unit_test(another_configuration_is_refused_by_its_key),
        cmocka_unit_test(values_that_are_not_finite_are_refused_by_name),
        cmocka_unit_test(L36_kill_9_at_random_moments_never_loses_the_newest_whole_checkpoint),
        cmocka_unit_test(L36_size_limit_of_1_MiB_keeps_the_older_checkpoint),
        cmocka_unit_test(L36_full_disk_of_1_MiB_keeps_the_older_checkpoint),
    };
    return cmocka_run_group_tests_name("io/checkpoint", tests, scratch_setup, scratch_teardown);
}
