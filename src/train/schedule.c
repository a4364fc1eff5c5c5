/* schedule.c - the learning rate, a pure function of the step: linear warm-up, then half a cosine (docs/method.md section 8). */
#include "train/trainer.h"

#include <math.h>

int64_t ida_train_warmup(const ida_train_options *o) {
    if (o->warmup_steps >= 0) return o->warmup_steps;
    double recipe = ceil(375e6 / ((double)o->batch * (double)o->seq_len));
    double most = floor(0.15 * (double)o->steps);
    return (int64_t)(recipe < most ? recipe : most);
}

double ida_schedule_lr(const ida_train_options *o, int64_t s) {
    int64_t w = ida_train_warmup(o);
    if (w < 1) w = 1;
    if (s < w) return s + 1 == w ? o->lr : o->lr * (double)(s + 1) / (double)w;
    int64_t span = o->steps - w;
    if (s - (w - 1) >= span) return o->min_lr;
    double x = (double)(s - (w - 1)) / (double)span;
    return o->min_lr + 0.5 * (o->lr - o->min_lr) * (1.0 + cos(3.14159265358979323846 * x));
}
