/* test_plan.c - the memory plan against what is taken: counted on the CPU, for every mixer; of a GPU against the sizes that its
 * ops came to. What a device with memory of its own holds is in test_device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/heap.h"
#include "tiny_run.h"

enum { ROW = 256, ROWS = 64, KIB = 1024 };
static const double MIB = 1048576;

/* Full rows without a separator: every sequence is as long as a row, which the plan takes for granted. */
static const char *data_without_documents(void) {
    static uint16_t ids[ROWS * ROW + 1];
    const char *dir = tiny_dir("rows");
    OK(ida_mkdirs(dir));
    tiny_tokens(ids, ROWS * ROW + 1, 7, 1e12);
    for (int i = 0; i < 2; i++) {
        char *path = ida_path_join(dir, i ? "val.bin" : "train.bin");
        OK(ida_write_file(path, ids, sizeof ids));
        ida_free(path);
    }
    return dir;
}

static ida_train_options run_of(ida_mixer_kind mixer, const char *data, bool again, int64_t micro_batch) {
    ida_train_options o = tiny_options(mixer, data, tiny_dir("run"));
    OK(ida_config_preset("demo", mixer, &o.config));
    o.config.vocab_size = 1000;
    o.source.format = "nanogpt";
    o.seq_len = ROW;
    o.batch = 4;
    o.micro_batch = micro_batch;
    o.steps = 2;
    o.activation_checkpointing = again;
    o.eval_tokens = ROW;
    return o;
}

static int64_t sum_of(const ida_train_plan *p) {
    return p->parameter_bytes + p->bf16_copy_bytes + p->gradient_bytes + p->optimizer_bytes + p->activation_bytes +
           p->logit_bytes + p->batch_bytes + p->scratch_bytes;
}

/* At most the plan; at least `least` of it, since the plan allows for more documents than there are. What is held all the time is
 * the plan without scratch, within 64 KiB of tables, paths and malloc's rounding. */
static void compare(const ida_train_options *o, const char *what, double least) {
    ida_train_plan p;
    ida_trainer *t = NULL;
    int64_t before, held, now, peak;
    OK(ida_train_make_plan(o, &p));
    assert_int_equal(p.total_bytes, sum_of(&p));
    ida_mem_used(&before, &peak);
    OK(ida_trainer_open(o, NULL, NULL, &t));
    ida_mem_used(&held, &peak);
    held -= before;
    const int64_t fixed = p.total_bytes - p.scratch_bytes + 2 * (int64_t)sizeof(ida_config); /* of run and model: with the tables */
    if (llabs(held - fixed) > 64 * KIB) fail_msg("%s: %lld bytes held, planned %lld", what, (long long)held, (long long)fixed);
    OK(ida_trainer_step(t));
    OK(ida_trainer_eval(t, NULL));
    OK(ida_trainer_save(t));
    ida_mem_used(&now, &peak);
    ida_trainer_close(t);
    peak -= before;
    if (peak > p.total_bytes || (double)peak < least * (double)p.total_bytes)
        fail_msg("%s: %lld bytes at most, planned %lld", what, (long long)peak, (long long)p.total_bytes);
    ida_mem_used(&now, &peak);
    assert_int_equal(now, before);
}

static void the_plan_of_a_cpu_run_is_its_peak(void **state) {
    (void)state;
    const char *data = data_without_documents();
    for (int mixer = 0; mixer <= IDA_MIXER_S4D; mixer++)
        for (int again = 0; again < 2; again++)
            for (int64_t micro_batch = 1; micro_batch <= 4; micro_batch += 3) {
                char what[80];
                snprintf(what, sizeof what, "%s, checkpointing %d, micro-batch %d", ida_mixer_name((ida_mixer_kind)mixer), again,
                         (int)micro_batch);
                const ida_train_options o = run_of((ida_mixer_kind)mixer, data, again, micro_batch);
                compare(&o, what, 0.95);
            }
}

/* One wide head and one long row: what the mixers borrow is more than all else that is borrowed. */
static void and_of_long_rows(void **state) {
    (void)state;
    const char *data = data_without_documents();
    for (int mixer = 0; mixer <= IDA_MIXER_S4D; mixer++) {
        ida_train_options o = run_of((ida_mixer_kind)mixer, data, false, 1);
        o.config.n_layers = 2;
        o.config.d_model = 32;
        o.config.n_heads = o.config.n_kv_heads = 1;
        o.config.ffn_hidden = 32;
        o.seq_len = 8 * ROW;
        o.batch = 1;
        compare(&o, ida_mixer_name((ida_mixer_kind)mixer), 0.9); /* sums of 64 documents where there is one */
    }
}

/* A hybrid with grouped keys, of widths that are no multiple of a vector. */
static void and_of_odd_shapes(void **state) {
    (void)state;
    ida_train_options o = run_of(IDA_MIXER_INTERDOMAIN, data_without_documents(), false, 4);
    o.config.d_model = 120;
    o.config.n_heads = 6;
    o.config.n_kv_heads = 2;
    o.config.ffn_hidden = 100;
    o.config.state_size = 19;
    o.config.layer_mixer[1] = IDA_MIXER_SOFTMAX;
    o.config.layer_mixer[2] = IDA_MIXER_SINGLE_QUERY;
    compare(&o, "hybrid", 0.95);
    for (int i = 0; i < o.config.n_layers; i++) o.config.layer_mixer[i] = IDA_MIXER_SOFTMAX;
    o.config.gate = false;
    o.out_dir = tiny_dir("run");
    compare(&o, "grouped softmax", 0.95);
}

typedef struct seen { int64_t peak, planned, steps; } seen;
static int see(void *user, const ida_train_event *e) {
    seen *s = user;
    if (e->kind != IDA_EVENT_STEP && e->kind != IDA_EVENT_SAVE) return 0;
    assert_true(e->device_memory_peak_bytes >= s->peak);
    s->peak = e->device_memory_peak_bytes;
    s->planned = e->device_memory_planned_bytes;
    s->steps++;
    return 0;
}

/* In the events and in log.jsonl; and it is this run's, not that of a larger one before. */
static void a_run_tells_its_peak_beside_its_plan(void **state) {
    (void)state;
    const char *data = data_without_documents();
    ida_train_options o = run_of(IDA_MIXER_S4D, data, false, 4);
    ida_train_plan large, p;
    seen first = {0}, s = {0};
    OK(ida_train_make_plan(&o, &large));
    OK(ida_train(&o, see, &first));
    o = run_of(IDA_MIXER_INTERDOMAIN, data, true, 1);
    OK(ida_train_make_plan(&o, &p));
    OK(ida_train(&o, see, &s));
    assert_int_equal(s.steps, 3);
    assert_int_equal(s.planned, p.total_bytes);
    assert_true(first.peak > s.peak && (double)s.peak > 0.9 * (double)p.total_bytes && s.peak <= p.total_bytes);
    int64_t size, lines = 0;
    char *log = tiny_read(o.out_dir, "log.jsonl", &size), want[120];
    for (const char *at = log; (at = strstr(at, "\"device_memory_peak_bytes\":")); at++) lines++;
    snprintf(want, sizeof want, "\"device_memory_planned_bytes\":%lld", (long long)p.total_bytes);
    assert_int_equal(lines, 3);
    assert_non_null(strstr(log, want));
    ida_free(log);
}

/* Scratch of GPU ops, 8 rows of 4096: at least what the layouts of src/ops/cuda came to (backward, for rows that are one document
 * or 8 of 512 on average, the larger; softmax: 2 bytes a query, key and head), at most what a long document among short ones
 * could make of it. To which come 64 MiB for matrix products. */
static void the_plan_of_a_gpu_needs_none(void **state) {
    (void)state;
    static const struct { const char *preset; ida_mixer_kind mixer; ida_dtype dtype; double least, most; } of[] = {
        {"125m", IDA_MIXER_INTERDOMAIN, IDA_BF16, 267.3, 352}, /* MiB */
        {"125m", IDA_MIXER_INTERDOMAIN, IDA_F32, 1427.4, 2312},
        {"125m", IDA_MIXER_SOFTMAX, IDA_BF16, 3072 + 1.5, 3072 + 4},
        {"125m", IDA_MIXER_SOFTMAX, IDA_F32, 6.4, 8},
        {"760m", IDA_MIXER_INTERDOMAIN, IDA_BF16, 1081.8, 1230},
        {"1.3b", IDA_MIXER_INTERDOMAIN, IDA_BF16, 662.4, 704},
        {"1.3b", IDA_MIXER_INTERDOMAIN, IDA_F32, 2206.7, 2320},
        {"125m", IDA_MIXER_S4D, IDA_BF16, 17.2, 38},
        {"125m", IDA_MIXER_S4D, IDA_F32, 57.2, 60}};
    ida_train_options o;
    ida_train_defaults(&o);
    o.device = "cuda:3";
    o.seq_len = 4096;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        ida_train_plan p, again, cpu;
        OK(ida_config_preset(of[i].preset, of[i].mixer, &o.config));
        o.dtype = of[i].dtype;
        OK(ida_train_make_plan(&o, &p));
        assert_int_equal(p.total_bytes, sum_of(&p));
        const double mib = (double)p.scratch_bytes / MIB - 64;
        if (!(mib >= of[i].least && mib <= of[i].most)) fail_msg("scratch of case %d: %.1f MiB", (int)i, mib);
        o.activation_checkpointing = true;
        OK(ida_train_make_plan(&o, &again));
        assert_true(again.activation_bytes < p.activation_bytes / 2 && again.scratch_bytes == p.scratch_bytes);
        o.activation_checkpointing = false;
        ida_train_options host = o;
        host.device = NULL;
        host.dtype = IDA_F32;
        OK(ida_train_make_plan(&host, &cpu));
        assert_int_equal(p.gradient_bytes, cpu.gradient_bytes);
        assert_int_equal(p.parameter_bytes, cpu.parameter_bytes);
        assert_int_equal(2 * p.bf16_copy_bytes, o.dtype == IDA_BF16 ? p.parameter_bytes : 0);
        assert_int_equal(cpu.host_bytes, 0);
        assert_true(p.host_bytes > 4 * p.parameters && p.host_bytes < 5 * p.parameters);
    }
    o.device = "tpu";
    ida_train_plan none;
    assert_int_equal(ida_train_make_plan(&o, &none), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "unknown device \"tpu\""));
    o.device = NULL;
    o.dtype = IDA_BF16;
    assert_int_equal(ida_train_make_plan(&o, &none), IDA_E_UNSUPPORTED);
}

/* cuDNN's workspace of 3 GiB is planned where it is at most a quarter of the GPU's memory. */
static void a_small_gpu_runs_without_cudnn(void **state) {
    (void)state;
    ida_train_options o;
    ida_train_plan p;
    ida_train_defaults(&o);
    OK(ida_config_preset("125m", IDA_MIXER_SOFTMAX, &o.config));
    o.device = "cuda";
    o.dtype = IDA_BF16;
    o.seq_len = 4096;
    OK(ida_plan_make(&o, INT64_C(12) << 30, &p));
    assert_true((double)p.scratch_bytes > 3072 * MIB);
    OK(ida_plan_make(&o, (INT64_C(12) << 30) - 4096, &p));
    assert_true((double)p.scratch_bytes < 128 * MIB);
}

typedef struct notes { int n; char text[4][256]; } notes;
static int take_notes(void *user, const ida_train_event *e) {
    notes *v = user;
    if (e->kind == IDA_EVENT_NOTE && v->n < 4) snprintf(v->text[v->n++], sizeof v->text[0], "%s", e->text);
    return 0;
}

static void what_does_not_fit_is_refused_before_it_is_taken(void **state) {
    (void)state;
    const char *run = tiny_dir("big");
    ida_train_options o = tiny_options(IDA_MIXER_INTERDOMAIN, tiny_standard_data(), run);
    notes v = {0};
    OK(ida_config_preset("1.3b", IDA_MIXER_INTERDOMAIN, &o.config));
    o.batch = o.micro_batch = 4096;
    o.seq_len = 65536;
    int64_t before = heap_in_use();
    assert_int_equal(ida_train(&o, take_notes, &v), IDA_E_NOMEM);
    int64_t after = heap_in_use();
    assert_non_null(strstr(ida_last_error(), "most of it activations"));
    assert_non_null(strstr(ida_last_error(), "micro_batch"));
    assert_int_equal(v.n, 1); /* the plan was told first */
    assert_non_null(strstr(v.text[0], "memory: "));
    assert_true(after <= before + 4096);
    assert_false(ida_exists(run));
    assert_true(ida_memory_available() > 0);
}

/* Each part, when it is the largest, is named with what lowers it. */
static void the_largest_part_is_named(void **state) {
    (void)state;
    static const struct { ida_train_plan p; bool checkpointing; const char *part, *remedy; } of[] = {
        {{.parameter_bytes = 500, .optimizer_bytes = 100, .total_bytes = 1000}, false, "most of it weights", "a smaller model"},
        {{.activation_bytes = 900, .total_bytes = 1000}, false, "most of it activations",
         "micro_batch or seq_len, or activation_checkpointing"},
        {{.activation_bytes = 900, .total_bytes = 1000}, true, "most of it activations", "a smaller micro_batch or seq_len"},
        {{.logit_bytes = 900, .total_bytes = 1000}, false, "most of it logits", "vocab_size"},
        {{.scratch_bytes = 900, .total_bytes = 1000}, false, "most of it scratch", "micro_batch or seq_len"},
        {{.batch_bytes = 900, .total_bytes = 1000}, false, "most of it batches", "a smaller batch"}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        OK(ida_plan_check(&of[i].p, 1000, -1, of[i].checkpointing));
        OK(ida_plan_check(&of[i].p, -1, -1, of[i].checkpointing));
        assert_int_equal(ida_plan_check(&of[i].p, 999, -1, of[i].checkpointing), IDA_E_NOMEM);
        const char *line = ida_last_error();
        if (!strstr(line, of[i].part) || !strstr(line, of[i].remedy)) fail_msg("case %d: %s", (int)i, line);
        assert_true(!of[i].checkpointing == !!strstr(line, "activation_checkpointing") || !of[i].p.activation_bytes);
    }
    const ida_train_plan beside = {.total_bytes = 10, .host_bytes = 1000};
    OK(ida_plan_check(&beside, 10, 1000, false));
    assert_int_equal(ida_plan_check(&beside, 10, 999, false), IDA_E_NOMEM);
    assert_non_null(strstr(ida_last_error(), "of host memory"));
}

static int clean(void **state) {
    (void)state;
    tiny_clean();
    return 0;
}

int main(int argc, char **argv) {
    (void)argc;
    heap_without_caches(argv);
    OK(ida_set_threads(2)); /* the mixers borrow per thread: the same figures on every machine */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_of_a_cpu_run_is_its_peak),
        cmocka_unit_test(and_of_long_rows),
        cmocka_unit_test(and_of_odd_shapes),
        cmocka_unit_test(a_run_tells_its_peak_beside_its_plan),
        cmocka_unit_test(the_plan_of_a_gpu_needs_none),
        cmocka_unit_test(a_small_gpu_runs_without_cudnn),
        cmocka_unit_test(what_does_not_fit_is_refused_before_it_is_taken),
        cmocka_unit_test(the_largest_part_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, clean);
}
