/* mixer.c - `idattn mixer`: the core on given tensors, file to file. */
#include "commands.h"
#include "common.h"

static int run_mixer(const options *o) {
    progress p;
    const ida_mixer_options *m = options_of(o, "mixer");
    int rc = begin(o, &p);
    if (rc) return rc;
    bool gpu = ida_device_dtype(m->device) != IDA_F32; /* where there is no f64 */
    ida_dtype dtype = gpu && !opt_given(o, "dtype") ? ida_device_dtype(m->device) : m->dtype;
    ida_status st = ida_mixer_file(o->args[0], o->args[1], m->form, dtype, m->chunk, m->device);
    return st ? fail(o, st, &p) : EXIT_OK;
}

const command command_mixer = {
    .name = "mixer",
    .args = "IN.safetensors OUT.safetensors [options]",
    .summary = "run the mixer core on given tensors",
    .text = "IN holds float64 tensors q, k, v, log_dt, a_log, a_imag, c_real, c_imag and optionally cu_seqlens, "
            "state_real, state_imag; with grad_o (and grad_final_state_real, grad_final_state_imag) the gradients are "
            "written too, except in the step form. The metadata keys discretization ({config:mixer.discretization}) "
            "and readout ({config:mixer.readout}) choose the options. OUT is float64.",
    .min_args = 2,
    .max_args = 2,
    .run = run_mixer,
    .options = (const option_spec[]){OPT_OF("mixer", NULL), OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};
