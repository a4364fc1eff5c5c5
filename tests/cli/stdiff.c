/* stdiff.c - compares tensors of two safetensors files: usage: stdiff EXPECTED GOT TOLERANCE. Every tensor of GOT must be in EXPECTED with the
 * same shape, and each must agree to TOLERANCE of its largest value. Prints one line per tensor; exit 0 when all agree.
 * With "-n COUNT" as a fifth and sixth argument GOT must hold exactly COUNT tensors, so that nothing is silently left out. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "io/safetensors.h"

static int die(void) {
    fprintf(stderr, "stdiff: %s\n", ida_last_error());
    return 2;
}

int main(int argc, char **argv) {
    ida_st_file *a = NULL, *b = NULL;
    if (argc < 4) return fprintf(stderr, "usage: stdiff EXPECTED GOT TOLERANCE [-n COUNT]\n"), 2;
    double tol = atof(argv[3]);
    int bad = 0;
    if (ida_st_open(argv[1], &a) || ida_st_open(argv[2], &b)) return die();
    if (argc == 6 && b->n != atoi(argv[5])) {
        printf("%lld tensors, not %s\n", (long long)b->n, argv[5]);
        bad = 1;
    }
    for (int64_t i = 0; i < b->n; i++) {
        const ida_st_tensor *t = &b->tensors[i];
        double *x = NULL, *y = NULL, diff = 0, scale = 0;
        if (IDA_ALLOC(x, t->numel, "stdiff") || IDA_ALLOC(y, t->numel, "stdiff")) return die();
        if (ida_st_read_f64(a, t->name, t->ndim, t->shape, x) || ida_st_read_f64(b, t->name, t->ndim, t->shape, y)) return die();
        for (int64_t k = 0; k < t->numel; k++) {
            double d = fabs(x[k] - y[k]);
            if (!(d <= diff)) diff = d; /* NaN sticks */
            scale = fmax(scale, fabs(x[k]));
        }
        double rel = scale > 0 ? diff / scale : diff;
        int ok = rel <= tol;
        printf("%-22s %.2e %s\n", t->name, rel, ok ? "ok" : "DIFFERS");
        bad |= !ok;
        ida_free(x);
        ida_free(y);
    }
    if (b->n == 0) bad = 1;
    ida_st_close(a);
    ida_st_close(b);
    return bad;
}
