/* mixer.c - `idattn mixer`: the core on given tensors, file to file. */
#include <string.h>

#include "commands.h"
#include "common.h"

static int run_mixer(const options *o) {
    progress p;
    const char *form = opt_str(o, "form"), *dtype = opt_str(o, "dtype");
    int rc = begin(o, &p);
    if (rc) return rc;
    ida_form f = strcmp(form, "sequential") == 0 ? IDA_FORM_SEQUENTIAL
                 : strcmp(form, "step") == 0     ? IDA_FORM_STEP
                                                 : IDA_FORM_CHUNKED;
    const char *device = opt_str(o, "device");
    const bool cpu = strcmp(device, "cpu") == 0;
    if (!opt_given(o, "dtype") && !cpu) dtype = "bf16";
    ida_dtype d = strcmp(dtype, "f64") == 0 ? IDA_F64 : strcmp(dtype, "f32") == 0 ? IDA_F32 : IDA_BF16;
    ida_status st = ida_mixer_file(o->args[0], o->args[1], f, d, opt_int(o, "chunk"), device);
    return st ? fail(o, st, &p) : EXIT_OK;
}

const command command_mixer = {
    .name = "mixer",
    .args = "IN.safetensors OUT.safetensors [options]",
    .summary = "run the mixer core on given tensors",
    .text =
        "IN holds float64 tensors q, k, v, log_dt, a_log, a_imag, c_real, c_imag and optionally cu_seqlens, state_real, "
        "state_imag; with grad_o "
        "(and grad_final_state_real, grad_final_state_imag) the gradients are written too, except in the step form. The metadata "
        "keys discretization (zoh, euler, unit, norm) and readout (hermitian, bilinear) choose the options. OUT is float64.",
    .min_args = 2,
    .max_args = 2,
    .run = run_mixer,
    .options = (const option_spec[]){
        OPT_DEVICE,
        {"form", 0, OPT_CHOICE, "sequential|step|chunked", "chunked", 0, 0, "which form of the map"},
        {"dtype", 0, OPT_CHOICE, "f64|f32|bf16", "f64", 0, 0,
         "arithmetic; bf16 rounds q, k, v and o; on a GPU bf16 is the default and f64 is not there"},
        {"chunk", 0, OPT_INT, "N", "0", 0, 64, "chunk length of the chunked form; 0 = 64"},
        OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};
