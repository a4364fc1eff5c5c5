/* fuzz_safetensors.c - any bytes as a safetensors file: refused with a message, or every tensor readable inside the input. */
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok) {
    if (!ok) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ida_st_file *f = NULL;
    ida_status st = ida_st_parse(data, (int64_t)size, "fuzz", &f);
    if (st != IDA_OK) {
        must(f == NULL && *ida_last_error());
        return 0;
    }
    int64_t total = 0;
    for (int64_t i = 0; i < f->n; i++) {
        const ida_st_tensor *t = &f->tensors[i];
        must(ida_st_find(f, t->name) == t);
        must((const uint8_t *)t->data >= data && t->bytes <= (int64_t)size && (const uint8_t *)t->data + t->bytes <= data + size);
        total += t->bytes;
        double *d = malloc((size_t)t->numel * sizeof *d + 1);
        float *x = malloc((size_t)t->numel * sizeof *x + 1);
        must(d && x);
        ida_status a = ida_st_read_f32(f, t->name, t->ndim, t->shape, x), b = ida_st_read_f64(f, t->name, t->ndim, t->shape, d);
        must(a == b && (a == IDA_OK || a == IDA_E_UNSUPPORTED));
        for (int64_t k = 0; a == IDA_OK && k < t->numel; k++) must(x[k] != x[k] || (float)d[k] == x[k]);
        free(d);
        free(x);
    }
    must(total < (int64_t)size);
    ida_st_close(f);
    return 0;
}
