/* test_device.c - training, sessions, files and the mixer on a device with memory of its own (backend_host.c): the same run as in
 * one piece, everything given back, and nothing lost when the device is full or gone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>

#include "idattn.h"
#include "backend_host.h"
#include "io/checkpoint.h"
#include "model/acts.h"
#include "ops/backend.h"
#include "train/plan.h"
#include "tiny_run.h"

static backend_host_control *device;

static ida_train_options device_run(const char *run) {
    ida_train_options o = tiny_options(IDA_MIXER_INTERDOMAIN, tiny_standard_data(), run);
    o.device = "cuda";
    o.config.layer_mixer[1] = IDA_MIXER_SOFTMAX;
    o.eval_every = 4;
    o.eval_tokens = 48;
    return o;
}

static int stop_at_5(void *user, const ida_train_event *e) {
    (void)user;
    return e->kind == IDA_EVENT_STEP && e->step == 5;
}

static void same_end(const char *a, const char *b) {
    static const char *const file[] = {"model.safetensors", "optimizer.safetensors", "trainer_state.json"};
    char x[200], y[200];
    snprintf(x, sizeof x, "%s/step-00000012", a);
    snprintf(y, sizeof y, "%s/step-00000012", b);
    for (size_t i = 0; i < sizeof file / sizeof *file; i++) tiny_same_file(x, y, file[i]);
}

static void a_run_is_stopped_resumed_and_checkpointed_as_on_the_cpu(void **state) {
    (void)state;
    const char *whole = tiny_dir("whole"), *parts = tiny_dir("parts"), *again = tiny_dir("again");
    ida_train_options o = device_run(whole);
    OK(ida_train(&o, NULL, NULL));
    assert_int_equal(device->live, 0);
    o.out_dir = parts;
    o.resume = true;
    assert_int_equal(ida_train(&o, stop_at_5, NULL), IDA_E_CANCELLED);
    OK(ida_train(&o, NULL, NULL));
    same_end(whole, parts);
    o.out_dir = again;
    o.activation_checkpointing = true;
    OK(ida_train(&o, NULL, NULL));
    same_end(whole, again);

    ida_model *here = NULL, *there = NULL;
    uint64_t a, b;
    OK(ida_model_load(whole, &here));
    OK(ida_model_load_on(whole, "cuda:0", IDA_F32, &there));
    OK(ida_model_hash(here, &a));
    OK(ida_model_hash(there, &b));
    assert_true(a == b);
    const float *data;
    OK(ida_model_tensor(there, 0, NULL, NULL, NULL, NULL));
    assert_int_equal(ida_model_tensor(there, 0, NULL, NULL, NULL, &data), IDA_E_UNSUPPORTED);
    const char *saved = tiny_dir("saved");
    OK(ida_model_save(there, saved));
    ida_model_free(here);
    ida_model_free(there);
    OK(ida_model_load(saved, &here));
    OK(ida_model_hash(here, &b));
    assert_true(a == b);
    ida_model_free(here);
    assert_int_equal(device->live, 0);
}

/* The k-th allocation fails, for every k until none does. */
static void a_full_device_gives_everything_back_wherever_it_was_met(void **state) {
    (void)state;
    const char *run = tiny_dir("full");
    ida_train_options o = device_run(run);
    o.resume = true;
    assert_int_equal(ida_train(&o, stop_at_5, NULL), IDA_E_CANCELLED);
    ida_status st = IDA_E_NOMEM;
    int64_t k = 0;
    for (; st == IDA_E_NOMEM; k++) {
        ida_trainer *t = NULL;
        device->allocs = 0;
        device->fail_alloc = k;
        st = ida_trainer_open(&o, NULL, NULL, &t);
        if (st == IDA_E_NOMEM) assert_non_null(strstr(ida_last_error(), "the device is full"));
        if (st == IDA_E_NOMEM) assert_non_null(strstr(ida_last_error(), "that training plans most are"));
        ida_trainer_close(t);
        assert_int_equal(device->live, 0);
    }
    assert_int_equal(st, IDA_OK);
    assert_true(k > 5); /* weights, gradients, two moments, activations; then none failed */
    const char *parent = tiny_dir("never");
    char fresh[200];
    snprintf(fresh, sizeof fresh, "%s/run", parent);
    for (int there = 0; there < 2; there++) { /* a run that could not begin leaves a folder only where one was */
        ida_train_options begin = device_run(fresh);
        if (there) OK(ida_mkdirs(fresh));
        device->allocs = 0;
        device->fail_alloc = 1;
        assert_int_equal(ida_train(&begin, NULL, NULL), IDA_E_NOMEM);
        assert_int_equal(ida_exists(fresh), there);
        assert_int_equal(ida_exists(parent), there);
    }
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7};
    st = IDA_E_NOMEM;
    for (k = 0; st == IDA_E_NOMEM; k++) {
        ida_model *m = NULL;
        ida_session *s = NULL, *clone = NULL;
        device->allocs = 0;
        device->fail_alloc = k;
        st = ida_model_load_on(run, "cuda", IDA_F32, &m);
        if (st == IDA_OK) st = ida_session_create(m, &s);
        if (st == IDA_OK) st = ida_session_feed(s, ids, 7, NULL);
        if (st == IDA_OK) st = ida_session_clone(s, &clone);
        if (st == IDA_OK) st = ida_session_feed(clone, ids, 1, NULL);
        ida_session_free(clone);
        ida_session_free(s);
        ida_model_free(m);
        assert_int_equal(device->live, 0);
    }
    assert_int_equal(st, IDA_OK);
    const char *golden = IDA_TEST_DATA "/golden/packed.safetensors";
    char out[200];
    snprintf(out, sizeof out, "%s/mixer.safetensors", tiny_root());
    st = IDA_E_NOMEM;
    for (k = 0; st == IDA_E_NOMEM; k++) {
        device->allocs = 0;
        device->fail_alloc = k;
        st = ida_mixer_file(golden, out, IDA_FORM_CHUNKED, IDA_F32, 0, "cuda");
        assert_int_equal(device->live, 0);
    }
    assert_int_equal(st, IDA_OK);
    assert_true(k > 20);
    device->fail_alloc = -1;
}

static int64_t newest(const char *run) {
    char *dir = NULL;
    int64_t step = -1;
    OK(ida_checkpoint_find(run, &dir, &step));
    ida_free(dir);
    return step;
}

static void what_was_done_is_saved_when_an_op_finds_the_device_full(void **state) {
    (void)state;
    const char *whole = tiny_dir("whole"), *run = tiny_dir("starved");
    ida_train_options o = device_run(whole);
    device->products = 0;
    OK(ida_train(&o, NULL, NULL));
    const int64_t all = device->products;
    o.out_dir = run;
    o.resume = true;
    device->products = 0;
    device->fail_product = all / 2;
    assert_int_equal(ida_train(&o, NULL, NULL), IDA_E_NOMEM);
    assert_non_null(strstr(ida_last_error(), "the device is full"));
    assert_non_null(strstr(ida_last_error(), "layer "));
    assert_non_null(strstr(ida_last_error(), "that training plans most are"));
    assert_int_equal(device->live, 0);
    const int64_t step = newest(run);
    assert_in_range(step, 4, 8);
    device->fail_product = -1;
    OK(ida_train(&o, NULL, NULL));
    same_end(whole, run);
}

static void a_lost_device_leaves_the_newest_checkpoint_and_its_own_message(void **state) {
    (void)state;
    const char *run = tiny_dir("lost");
    ida_train_options o = device_run(run);
    o.save_every = 3;
    o.eval_every = 0;
    o.resume = true;
    device->products = 0;
    device->fail_product = 5 * o.batch / o.micro_batch * (7 + 2 * 7); /* in the course of a step between two checkpoints */
    device->break_there = true;
    assert_int_equal(ida_train(&o, NULL, NULL), IDA_E_IO);
    assert_non_null(strstr(ida_last_error(), "the device is lost"));
    assert_non_null(strstr(ida_last_error(), "layer "));
    assert_int_equal(device->live, 0);
    const int64_t step = newest(run);
    assert_true(step == 3 || step == 6);
    device->broken = device->break_there = false;
    device->fail_product = -1;
    OK(ida_train(&o, NULL, NULL));
    assert_int_equal(newest(run), 12);
}

static void a_run_that_does_not_fit_the_device_is_refused(void **state) {
    (void)state;
    const char *run = tiny_dir("large");
    ida_train_options o = device_run(run);
    device->available = 1000;
    assert_int_equal(ida_train(&o, NULL, NULL), IDA_E_NOMEM);
    assert_non_null(strstr(ida_last_error(), "the device has 1000 B available"));
    assert_false(ida_exists(run));
    device->available = INT64_MAX;
}

/* This device's ops borrow on the host, so it holds the plan without scratch and tables: to the byte, but for malloc's rounding
 * of 6 blocks. The host beside it: the initial weights and batches, less what a GPU's uploads pass through; at a save one piece
 * of 4 MiB and what writing borrows. */
static void what_the_device_and_the_host_beside_it_hold_is_planned(void **state) {
    (void)state;
    ida_train_options o = device_run(tiny_dir("planned"));
    OK(ida_config_preset("demo", IDA_MIXER_INTERDOMAIN, &o.config));
    o.config.vocab_size = TINY_VOCAB;
    ida_train_plan p;
    ida_trainer *t = NULL;
    int64_t before, now, peak;
    OK(ida_train_make_plan(&o, &p));
    ida_mem_used(&before, &peak);
    ida_mem_reset_peak();
    OK(ida_trainer_open(&o, NULL, NULL, &t));
    ida_mem_used(&now, &peak);
    const int64_t open = peak - before;
    OK(ida_trainer_step(t));
    ida_mem_used(&now, &peak);
    const int64_t held = now - before;
    ida_mem_reset_peak();
    OK(ida_trainer_save(t));
    const int64_t model = p.parameter_bytes + p.gradient_bytes + p.optimizer_bytes + p.activation_bytes + p.logit_bytes;
    ida_dev_used(t->dev, &now, &peak);
    assert_int_equal(now, device->bytes);
    assert_true(peak >= model && peak <= model + 6 * 4096);
    ida_mem_used(&now, &peak);
    const int64_t save = peak - before, most = save > open ? save : open, planned = p.host_bytes - (16 << 20);
    assert_true(save - held > 4 << 20 && save - held <= (4 << 20) + (int64_t)ida_plan_save_buffers(t->model->table.n));
    assert_true(open > p.parameter_bytes && most <= planned && most > planned * 9 / 10);
    ida_trainer_close(t);
    assert_int_equal(device->bytes, 0);
}

static void feed_rest(ida_session *s, float *logits) {
    static const int32_t rest[] = {9, 8, 7, 3, 4};
    OK(ida_session_feed(s, rest, 4, NULL));
    OK(ida_session_feed(s, rest + 4, 1, logits));
}

static void a_session_goes_through_a_file_and_between_devices(void **state) {
    (void)state;
    const char *run = tiny_dir("session");
    ida_train_options o = device_run(run);
    o.steps = 2;
    OK(ida_train(&o, NULL, NULL));
    char file[200];
    snprintf(file, sizeof file, "%s/state.bin", tiny_root());
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7};
    float want[TINY_VOCAB], got[TINY_VOCAB], cpu[TINY_VOCAB];
    ida_model *there = NULL, *here = NULL;
    ida_session *s = NULL, *back = NULL, *moved = NULL;
    OK(ida_model_load_on(run, "cuda", IDA_F32, &there));
    OK(ida_model_load(run, &here));
    OK(ida_session_create(there, &s));
    OK(ida_session_feed(s, ids, 7, NULL));
    OK(ida_session_save(s, file));
    feed_rest(s, want);
    OK(ida_session_create(there, &back));
    OK(ida_session_load(back, file));
    feed_rest(back, got);
    assert_memory_equal(want, got, sizeof want);
    OK(ida_session_create(here, &moved));
    OK(ida_session_load(moved, file));
    feed_rest(moved, cpu);
    for (int i = 0; i < TINY_VOCAB; i++) assert_true(fabsf(cpu[i] - want[i]) < 1e-4f);
    ida_session_free(s);
    ida_session_free(back);
    ida_session_free(moved);
    ida_model_free(here);
    ida_model_free(there);
    assert_int_equal(device->live, 0);
}

/* ---- steps that the device records. Two sequences at different positions take STEPS tokens each; with a recording there the
 * scratch moves, and a prompt that both take in one call comes between. A second pair of sequences follows with the same acts. */
enum { STEPS = IDA_STEPS_BEFORE + 4, MOVE = IDA_STEPS_BEFORE + 2, PAIR = 2, PROMPT = 5 };

static ida_model *model_of(ida_mixer_kind kind, bool output_norm, bool hybrid) {
    ida_config c;
    ida_model *m = NULL;
    const ida_device *dev = NULL;
    OK(ida_config_preset("tiny", kind, &c));
    c.vocab_size = TINY_VOCAB;
    c.output_norm = output_norm;
    if (hybrid) c.layer_mixer[1] = IDA_MIXER_SOFTMAX;
    OK(ida_device_open("cuda", IDA_F32, &dev));
    OK(ida_model_create_on(&c, dev, 3, &m));
    return m;
}

static void feed_prompt(const ida_model *m, ida_state *s, const int32_t *ids) {
    static const int64_t cu[PAIR + 1] = {0, 3, PROMPT};
    ida_acts *a = NULL;
    const ida_batch b = {.n_tokens = PROMPT, .ids = ids, .seqs = {.n = PAIR, .cu = cu}};
    OK(ida_acts_new(&m->cfg, m->dev, PROMPT, PAIR, IDA_ACTS_FORWARD, &a));
    OK(ida_model_forward(m, a, &b, s, NULL, NULL, NULL, 0));
    ida_acts_free(a);
}

/* logits [2 * STEPS, PAIR, TINY_VOCAB]. profile: no step is recorded. */
static void run_steps(const ida_model *m, bool profile, float *logits) {
    static const int64_t cu[PAIR + 1] = {0, 1, 2}, list[PAIR] = {0, 1};
    ida_acts *a = NULL;
    ida_state *s[2] = {NULL, NULL};
    OK(ida_acts_new(&m->cfg, m->dev, PAIR, PAIR, IDA_ACTS_FORWARD, &a));
    ida_acts_profile(a, profile);
    for (int i = 0; i < 2 * STEPS; i++) {
        const int which = i / STEPS;
        int32_t ids[PROMPT];
        for (int k = 0; k < PROMPT; k++) ids[k] = (7 * i + 11 * k + 1) % TINY_VOCAB;
        if (i % STEPS == 0) OK(ida_state_new(&m->cfg, m->dev, PAIR, &s[which]));
        if (i % STEPS == 0 || i == MOVE) feed_prompt(m, s[which], ids);
        if (i == MOVE) device->moves++;
        const ida_batch b = {.n_tokens = PAIR, .ids = ids, .seqs = {.n = PAIR, .cu = cu}};
        OK(ida_model_forward(m, a, &b, s[which], NULL, logits + (size_t)i * PAIR * TINY_VOCAB, list, PAIR));
    }
    ida_state_free(s[0]);
    ida_state_free(s[1]);
    ida_acts_free(a);
}

static void recorded_steps_have_the_bits_of_steps_op_by_op(void **state) {
    (void)state;
    static const struct { ida_mixer_kind kind; bool output_norm, hybrid; } of[] = {
        {IDA_MIXER_INTERDOMAIN, false, false}, {IDA_MIXER_INTERDOMAIN, true, false}, {IDA_MIXER_SINGLE_QUERY, false, false},
        {IDA_MIXER_DUAL_LINEAR, false, false}, {IDA_MIXER_S4D, false, false},        {IDA_MIXER_INTERDOMAIN, false, true},
        {IDA_MIXER_SOFTMAX, false, false}};
    enum { N = 2 * STEPS * PAIR * TINY_VOCAB };
    static float one[N], other[N];
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        ida_model *m = model_of(of[i].kind, of[i].output_norm, of[i].hybrid);
        const bool cache = of[i].hybrid || of[i].kind == IDA_MIXER_SOFTMAX; /* which moves as it grows */
        device->records = device->replays = 0;
        run_steps(m, true, one);
        assert_int_equal(device->records, 0);
        run_steps(m, false, other);
        assert_memory_equal(one, other, sizeof one);
        /* of each state all but its first steps; the move costs one more and a new recording */
        assert_int_equal(device->replays, cache ? 0 : 2 * (STEPS - IDA_STEPS_BEFORE) - 1);
        assert_int_equal(device->records, cache ? 0 : 3);
        ida_model_free(m);
        assert_int_equal(device->live, 0);
    }
}

static int warnings;
static void count_line(void *user, const char *line) {
    (void)user;
    if (strstr(line, "op by op: ") && strstr(line, "a recording")) warnings++;
}

static void feed_steps(ida_session *s, float *logits) {
    for (int32_t id = 1; id < IDA_STEPS_BEFORE + 4; id++) OK(ida_session_feed(s, &id, 1, logits));
}

/* The beginning, the end, or the k-th op of a recording fails, for every k until none does: said once, and the steps go on. */
static void a_device_that_cannot_record_says_so_once_and_goes_on(void **state) {
    (void)state;
    ida_model *m = model_of(IDA_MIXER_INTERDOMAIN, false, false);
    float want[TINY_VOCAB], got[TINY_VOCAB];
    bool failed = true;
    int k = -2;
    ida_set_log(count_line, NULL);
    for (; failed; k++) {
        ida_session *s = NULL;
        warnings = 0;
        device->records = device->replays = 0;
        device->fail_record = k == -2;
        device->fail_record_end = k == -1;
        device->fail_recorded = k < 0 ? -1 : k;
        OK(ida_session_create(m, &s));
        feed_steps(s, got);
        failed = device->replays == 0;
        assert_int_equal(device->records, 1);
        assert_int_equal(warnings, failed ? 1 : 0);
        if (k == -2) memcpy(want, got, sizeof want);
        assert_memory_equal(want, got, sizeof want);
        ida_session_free(s);
    }
    device->fail_recorded = -1;
    ida_set_log(NULL, NULL);
    assert_true(k > 20);
    ida_model_free(m);
    assert_int_equal(device->live, 0);
}

/* A step that fails while it is replayed leaves a session at position 0, as any other call does. */
static void a_lost_device_ends_a_recorded_step_and_nothing_is_left(void **state) {
    (void)state;
    ida_model *m = model_of(IDA_MIXER_S4D, false, false);
    ida_session *s = NULL;
    const int32_t id = 5;
    float logits[TINY_VOCAB];
    OK(ida_session_create(m, &s));
    feed_steps(s, logits);
    device->products = 0;
    device->fail_product = 3;
    device->break_there = true;
    assert_int_equal(ida_session_feed(s, &id, 1, NULL), IDA_E_IO);
    assert_non_null(strstr(ida_last_error(), "the device is lost"));
    assert_int_equal(ida_session_position(s), 0);
    device->broken = device->break_there = false;
    device->fail_product = -1;
    ida_session_free(s);
    ida_model_free(m);
    assert_int_equal(device->live, 0);
}

/* A session whose steps are recorded, then begun anew, loaded from a file, and on with other weights, against fresh ones. */
static void a_recording_follows_the_session_and_the_weights(void **state) {
    (void)state;
    ida_model *m = model_of(IDA_MIXER_INTERDOMAIN, false, false);
    ida_session *s = NULL, *fresh = NULL;
    float want[TINY_VOCAB], got[TINY_VOCAB];
    char file[200];
    snprintf(file, sizeof file, "%s/recorded.bin", tiny_root());
    OK(ida_mkdirs(tiny_root()));
    OK(ida_session_create(m, &s));
    feed_steps(s, want);
    OK(ida_session_save(s, file));
    ida_session_reset(s);
    device->replays = 0;
    feed_steps(s, got);
    assert_true(device->replays > IDA_STEPS_BEFORE); /* from the first step on */
    assert_memory_equal(want, got, sizeof want);

    OK(ida_session_create(m, &fresh));
    OK(ida_session_load(fresh, file));
    feed_steps(fresh, want);
    ida_session_free(fresh);
    feed_steps(s, got);
    assert_memory_equal(want, got, sizeof want);
    OK(ida_session_load(s, file));
    feed_steps(s, got);
    assert_memory_equal(want, got, sizeof want);

    OK(ida_model_init(m, 4));
    OK(ida_model_prepare(m));
    ida_session_reset(s);
    feed_steps(s, got);
    OK(ida_session_create(m, &fresh));
    feed_steps(fresh, want);
    assert_memory_equal(want, got, sizeof want);
    ida_session_free(fresh);
    ida_session_free(s);
    ida_model_free(m);
    assert_int_equal(device->live, 0);
}

/* Before any test: the backend beside this program, and its controls. */
static int find_device(void **state) {
    (void)state;
    char self[PATH_MAX], path[PATH_MAX + 32];
    const ida_device *dev = NULL;
    if (!realpath("/proc/self/exe", self)) return -1;
    snprintf(path, sizeof path, "%s/backend_host.so", dirname(self));
    setenv("IDA_CUDA_BACKEND", path, 1);
    if (ida_device_open("cuda", IDA_F32, &dev)) return -1;
    void *so = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    device = so ? dlsym(so, "backend_host") : NULL;
    return device ? 0 : -1;
}
static int clean(void **state) {
    (void)state;
    tiny_clean();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_is_stopped_resumed_and_checkpointed_as_on_the_cpu),
        cmocka_unit_test(a_full_device_gives_everything_back_wherever_it_was_met),
        cmocka_unit_test(what_was_done_is_saved_when_an_op_finds_the_device_full),
        cmocka_unit_test(a_lost_device_leaves_the_newest_checkpoint_and_its_own_message),
        cmocka_unit_test(a_run_that_does_not_fit_the_device_is_refused),
        cmocka_unit_test(what_the_device_and_the_host_beside_it_hold_is_planned),
        cmocka_unit_test(a_session_goes_through_a_file_and_between_devices),
        cmocka_unit_test(recorded_steps_have_the_bits_of_steps_op_by_op),
        cmocka_unit_test(a_device_that_cannot_record_says_so_once_and_goes_on),
        cmocka_unit_test(a_lost_device_ends_a_recorded_step_and_nothing_is_left),
        cmocka_unit_test(a_recording_follows_the_session_and_the_weights),
    };
    return cmocka_run_group_tests_name("train/device", tests, find_device, clean);
}
