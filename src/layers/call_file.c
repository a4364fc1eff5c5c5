/* call_file.c - ida_mixer_file: the mixer core on the tensors of a safetensors file (docs/formats.md). float64 runs the double
 * reference; float32 and bfloat16 run the CPU device. Results are float64, written whole or not at all.
 * Invariant: every tensor has the shape that q, v, a_log and cu_seqlens call for, and every number in and out is finite. */
#include <math.h>
#include <stddef.h>
#include <string.h>
#include "core/bf16.h"
#include "core/mem.h"
#include "core/place.h"
#include "layers/call.h"
#include "ops/backend.h"
#include "io/safetensors.h"
#include "ops/ops.h"

/* One tensor: its name, its shape by letters (docs/method.md: T tokens, S documents, H heads, G groups, R, D, M, W = R + D), its
 * place in ida_mixer_run, and whether bf16 rounds it (activations only). */
typedef struct slot {
    const char *name, *dims;
    size_t field;
    bool activation, optional;
} slot;
#define AT(f) offsetof(ida_mixer_run, f)
static const slot inputs[] = {
    {"q", "THR", AT(q), true, false},
    {"k", "TGR", AT(k), true, false},
    {"v", "TGD", AT(v), true, false},
    {"log_dt", "G", AT(log_dt), false, false},
    {"a_log", "GM", AT(a_log), false, false},
    {"a_imag", "GM", AT(a_imag), false, false},
    {"c_real", "GMM", AT(c_real), false, false},
    {"c_imag", "GMM", AT(c_imag), false, false},
    {"state_real", "SGMW", AT(state_real), false, true},
    {"state_imag", "SGMW", AT(state_imag), false, true},
    {"grad_o", "THD", AT(grad_o), true, true},
    {"grad_final_state_real", "SGMW", AT(grad_final_state_real), false, true},
    {"grad_final_state_imag", "SGMW", AT(grad_final_state_imag), false, true},
};
static const slot outputs[] = {
    {"o", "THD", AT(o), true, false},
    {"final_state_real", "SGMW", AT(final_state_real), false, false},
    {"final_state_imag", "SGMW", AT(final_state_imag), false, false},
    {"grad_q", "THR", AT(grad_q), true, false},
    {"grad_k", "TGR", AT(grad_k), true, false},
    {"grad_v", "TGD", AT(grad_v), true, false},
    {"grad_log_dt", "G", AT(grad_log_dt), false, false},
    {"grad_a_log", "GM", AT(grad_a_log), false, false},
    {"grad_a_imag", "GM", AT(grad_a_imag), false, false},
    {"grad_c_real", "GMM", AT(grad_c_real), false, false},
    {"grad_c_imag", "GMM", AT(grad_c_imag), false, false},
    {"grad_state_real", "SGMW", AT(grad_state_real), false, false},
    {"grad_state_imag", "SGMW", AT(grad_state_imag), false, false},
};

#define T ida_mixer_options
static const ida_field rows[] = {
    IDA_ROW_DEVICE(T),
    IDA_ROW_ENUM(T, "form", form, IDA_FORM_CHUNKED, ida_form_names, .help = "which form of the map"),
    IDA_ROW_ENUM(T, "dtype", dtype, IDA_F64, ida_dtype_names,
                 .help = "arithmetic; bf16 rounds q, k, v and o; on a GPU bf16 is the default and f64 is not there"),
    IDA_ROW_INT(T, "chunk", chunk, 0, 0, IDA_MIXER_CHUNK, .help = "chunk length of the chunked form",
                .note = "0 = " IDA_STR(IDA_MIXER_CHUNK)),
};
#undef T
const ida_fields ida_mixer_fields = IDA_FIELDS("mixer", "mixer: ", ida_mixer_options, rows);

enum { N_IN = sizeof inputs / sizeof *inputs, N_OUT = sizeof outputs / sizeof *outputs, N_FORWARD_OUT = 3 };

typedef struct job {
    const ida_st_file *file;
    const ida_device *dev;
    ida_dtype dtype;
    ida_mixer_run run;
    int64_t *cu;
    void *in[N_IN], *out[N_OUT];
    double *result[N_OUT];
} job;

static void set_field(ida_mixer_run *r, size_t field, void *p) { memcpy((char *)r + field, &p, sizeof p); }

static int shape_of(const ida_mixer_run *r, const char *dims, int64_t *shape) {
    int n = 0;
    for (; dims[n]; n++) {
        switch (dims[n]) {
        case 'T': shape[n] = r->n_tokens; break;
        case 'S': shape[n] = r->n_seq; break;
        case 'H': shape[n] = r->n_heads; break;
        case 'G': shape[n] = r->n_kv; break;
        case 'R': shape[n] = r->key_dim; break;
        case 'D': shape[n] = r->value_dim; break;
        case 'M': shape[n] = r->state_size; break;
        default: shape[n] = r->key_dim + r->value_dim; break; /* W */
        }
    }
    return n;
}

static int64_t count_of(const ida_mixer_run *r, const char *dims) {
    int64_t shape[8], n = 1;
    for (int d = shape_of(r, dims, shape) - 1; d >= 0; d--) n *= shape[d];
    return n;
}

static size_t element_size(ida_dtype dtype) { return dtype == IDA_F64 ? sizeof(double) : sizeof(float); }

static ida_status find(const ida_st_file *f, const char *name, int ndim, const ida_st_tensor **t) {
    *t = ida_st_find(f, name);
    IDA_FAIL_IF(!*t, IDA_E_FORMAT, "%s: there is no tensor \"%s\"", f->path, name);
    IDA_FAIL_IF((*t)->ndim != ndim, IDA_E_FORMAT, "%s: \"%s\" has %d dimensions, must have %d", f->path, name, (*t)->ndim, ndim);
    return IDA_OK;
}

/* Absent cu_seqlens: one document. */
static ida_status read_offsets(job *j) {
    const ida_st_tensor *t = ida_st_find(j->file, "cu_seqlens");
    const int64_t n = t ? t->numel : 2;
    IDA_FAIL_IF(t && (t->ndim != 1 || n < 1 || (t->dtype != IDA_ST_I64 && t->dtype != IDA_ST_I32)), IDA_E_FORMAT,
                "%s: \"cu_seqlens\" must be a list of at least one I64 or I32 offset", j->file->path);
    IDA_TRY(IDA_ALLOC(j->cu, n, "cu_seqlens"));
    if (!t) j->cu[0] = 0, j->cu[1] = j->run.n_tokens;
    for (int64_t i = 0; i < n && t; i++) {
        int32_t narrow;
        if (t->dtype == IDA_ST_I64) {
            memcpy(&j->cu[i], (const char *)t->data + 8 * i, 8);
        } else {
            memcpy(&narrow, (const char *)t->data + 4 * i, 4);
            j->cu[i] = narrow;
        }
    }
    j->run.n_seq = n - 1;
    j->run.cu = j->cu;
    return IDA_OK;
}

static ida_status read_option(const ida_st_file *f, const char *key, const char *const *names, int *out) {
    const char *value = ida_st_meta(f, key);
    char list[128];
    *out = value ? ida_names_find(names, value) : 0; /* absent: the first name is the default */
    if (*out >= 0) return IDA_OK;
    ida_names_join(names, 0, NULL, list, sizeof list);
    IDA_FAIL(IDA_E_FORMAT, "%s: metadata \"%s\" is \"%.60s\"; known are %s", f->path, key, value, list);
}

static ida_status read_sizes(job *j, ida_form form, int64_t chunk) {
    const ida_st_tensor *q, *k, *v, *a;
    int disc, readout;
    IDA_TRY(find(j->file, "q", 3, &q));
    IDA_TRY(find(j->file, "k", 3, &k));
    IDA_TRY(find(j->file, "v", 3, &v));
    IDA_TRY(find(j->file, "a_log", 2, &a));
    IDA_TRY(read_option(j->file, "discretization", ida_disc_names, &disc));
    IDA_TRY(read_option(j->file, "readout", ida_readout_names, &readout));
    j->run = (ida_mixer_run){.n_tokens = q->shape[0],
                             .n_heads = q->shape[1],
                             .n_kv = k->shape[1],
                             .key_dim = q->shape[2],
                             .value_dim = v->shape[2],
                             .state_size = a->shape[1],
                             .chunk = chunk,
                             .discretization = (ida_discretization)disc,
                             .readout = (ida_readout)readout};
    IDA_TRY(read_offsets(j));
    /* What is the caller's (form, chunk) was checked before: anything wrong now is the file's. */
    return ida_mixer_check(&j->run, form) == IDA_OK ? IDA_OK : ida_fail_prefix(IDA_E_FORMAT, "%s", j->file->path);
}

static ida_status check_finite(const char *path, const char *name, const double *p, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        IDA_FAIL_IF(!isfinite(p[i]), IDA_E_NUMERIC, "%s: \"%s\" has %g at element %lld; only finite numbers can be used", path,
                    name, p[i], (long long)i);
    return IDA_OK;
}

/* Doubles to the element type that is run. */
static ida_status narrow(const job *j, const slot *s, const double *from, void *to, int64_t n) {
    if (j->dtype == IDA_F64) {
        if (n > 0) memcpy(to, from, (size_t)n * sizeof *from);
        return IDA_OK;
    }
    for (int64_t i = 0; i < n; i++) {
        float x = (float)from[i];
        if (j->dtype == IDA_BF16 && s->activation) x = ida_bf16_to_f32(ida_f32_to_bf16(x));
        IDA_FAIL_IF(!isfinite(x), IDA_E_NUMERIC, "%s: \"%s\" has %g at element %lld, more than the data type holds; use f64",
                    j->file->path, s->name, from[i], (long long)i);
        ((float *)to)[i] = x;
    }
    return IDA_OK;
}

/* A misspelt optional name would silently change the result: say what is left aside. Results in the file are expected there. */
static void log_unused(const ida_st_file *f) {
    for (int64_t t = 0; t < f->n; t++) {
        const char *name = f->tensors[t].name;
        bool known = !strcmp(name, "cu_seqlens");
        for (int i = 0; i < N_IN; i++) known |= !strcmp(name, inputs[i].name);
        for (int i = 0; i < N_OUT; i++) known |= !strcmp(name, outputs[i].name);
        if (!known) ida_log("%s: tensor \"%s\" is not one of the mixer's and is not used", f->path, name);
    }
}

static ida_status read_inputs(job *j) {
    const ida_st_file *f = j->file;
    log_unused(f);
    for (int i = 0; i < N_IN; i++) {
        const slot *s = &inputs[i];
        if (s->optional && !ida_st_find(f, s->name)) continue;
        int64_t shape[8];
        const int ndim = shape_of(&j->run, s->dims, shape);
        const int64_t n = count_of(&j->run, s->dims);
        double *wide;
        const ida_st_tensor *t;
        IDA_TRY(ida_st_check(f, s->name, ndim, shape, &t)); /* before memory of that size is taken */
        IDA_TRY(IDA_ALLOC(wide, n, s->name));
        ida_status st = ida_st_read_f64(f, s->name, ndim, shape, wide);
        if (st == IDA_OK) st = check_finite(f->path, s->name, wide, n);
        if (st == IDA_OK) st = ida_alloc(&j->in[i], n, element_size(j->dtype), s->name);
        if (st == IDA_OK) st = narrow(j, s, wide, j->in[i], n);
        ida_free(wide);
        IDA_TRY(st);
        set_field(&j->run, s->field, j->in[i]);
    }
    IDA_FAIL_IF(!j->run.state_real != !j->run.state_imag, IDA_E_FORMAT,
                "%s: of state_real and state_imag only one is there; give both or neither", f->path);
    IDA_FAIL_IF(!j->run.grad_final_state_real != !j->run.grad_final_state_imag, IDA_E_FORMAT,
                "%s: of grad_final_state_real and grad_final_state_imag only one is there; give both or neither", f->path);
    IDA_FAIL_IF(!j->run.grad_o && j->run.grad_final_state_real, IDA_E_FORMAT,
                "%s: there is grad_final_state_real but no grad_o; add grad_o (zeros are fine) to get gradients", f->path);
    return IDA_OK;
}

static ida_status run(job *j, ida_form form, int n_out) {
    for (int i = 0; i < n_out; i++) {
        IDA_TRY(ida_calloc(&j->out[i], count_of(&j->run, outputs[i].dims), element_size(j->dtype), outputs[i].name));
        set_field(&j->run, outputs[i].field, j->out[i]);
    }
    for (int backward = 0; backward <= (n_out > N_FORWARD_OUT ? 1 : 0); backward++) {
        if (j->dtype == IDA_F64)
            IDA_TRY(ida_ref64_mixer_run(&ida_ref64_device, &j->run, form, backward));
        else
            IDA_TRY(ida_mixer_run_on(j->dev, &j->run, form, backward));
    }
    return IDA_OK;
}

static ida_status write_results(job *j, const char *path, int n_out) {
    ida_st_out tensors[N_OUT];
    for (int i = 0; i < n_out; i++) {
        const slot *s = &outputs[i];
        const int64_t n = count_of(&j->run, s->dims);
        IDA_TRY(IDA_ALLOC(j->result[i], n, s->name));
        for (int64_t e = 0; e < n; e++) {
            if (j->dtype == IDA_F64) {
                j->result[i][e] = ((const double *)j->out[i])[e];
            } else {
                const float x = ((const float *)j->out[i])[e];
                j->result[i][e] = (double)(j->dtype == IDA_BF16 && s->activation ? ida_bf16_to_f32(ida_f32_to_bf16(x)) : x);
            }
        }
        IDA_TRY(check_finite(path, s->name, j->result[i], n));
        tensors[i] = (ida_st_out){.name = s->name, .dtype = IDA_ST_F64, .data = j->result[i]};
        tensors[i].ndim = shape_of(&j->run, s->dims, tensors[i].shape);
    }
    const char *const keys[] = {"discretization", "readout"};
    const char *const values[] = {ida_disc_names[j->run.discretization], ida_readout_names[j->run.readout]};
    return ida_st_write(path, tensors, n_out, keys, values, 2);
}

ida_status ida_mixer_file(const char *in_path, const char *out_path, ida_form form, ida_dtype dtype, int64_t chunk,
                          const char *device) {
    IDA_FAIL_IF(!in_path || !out_path, IDA_E_ARG, "mixer: the input or the output path is NULL");
    IDA_FAIL_IF((int)dtype < IDA_F64 || dtype > IDA_BF16, IDA_E_ARG, "mixer: unknown data type %d", (int)dtype);
    IDA_FAIL_IF((int)form < IDA_FORM_SEQUENTIAL || form > IDA_FORM_CHUNKED, IDA_E_ARG, "mixer: unknown form %d", (int)form);
    const ida_mixer_options o = {.device = device, .form = form, .dtype = dtype, .chunk = chunk};
    IDA_TRY(ida_fields_check(&ida_mixer_fields, &o));
    const bool cpu = !device || strcmp(device, IDA_DEFAULT_DEVICE) == 0;
    IDA_FAIL_IF(!cpu && dtype == IDA_F64, IDA_E_UNSUPPORTED, "mixer: float64 runs on the CPU only; give f32 or bf16 for %s",
                device);
    ida_st_file *f;
    const ida_device *dev = NULL;
    /* on the CPU bf16 is a rounding of the tensors */
    IDA_TRY(ida_device_open(cpu ? IDA_DEFAULT_DEVICE : device, cpu ? IDA_F32 : dtype, &dev));
    IDA_TRY(ida_st_open(in_path, &f));
    job j = {.file = f, .dtype = dtype, .dev = dev};
    ida_status st;
    IDA_TRY_GOTO(read_sizes(&j, form, chunk));
    IDA_TRY_GOTO(read_inputs(&j));
    const bool backward = j.run.grad_o && form != IDA_FORM_STEP;
    if (j.run.grad_o && !backward)
        ida_log("%s: the step form has no gradients: only o and the final state are written; use --form chunked or sequential "
                "for them",
                in_path);
    const int n_out = backward ? N_OUT : N_FORWARD_OUT;
    IDA_TRY_GOTO(run(&j, form, n_out));
    st = write_results(&j, out_path, n_out);
out:
    for (int i = 0; i < N_IN; i++) ida_free(j.in[i]);
    for (int i = 0; i < N_OUT; i++) {
        ida_free(j.out[i]);
        ida_free(j.result[i]);
    }
    ida_free(j.cu);
    ida_st_close(f);
    return st;
}
