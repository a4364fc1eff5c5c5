/* recorded.c - steps of one token a sequence that a device records once and replays (acts.h). Not here: the step itself (forward.c).
 * Invariant: a replayed step has the bits of one that runs op by op. */
#include <string.h>

#include "model/run.h"

/* Every row's logits are wanted and a->wide has room for them, nothing is timed in parts, and no layer has a cache, which moves
 * as it grows. */
bool ida_run_recordable(const ida_run *r, const real *losses, const real *logits, const int64_t *logit_rows, int64_t n_rows) {
    const ida_acts *a = r->a;
    const bool can = a->dev->memory && a->dev->memory->record && r->step && !a->steps.off && !a->times.profile;
    if (!can || losses || !logits || n_rows != r->b->n_tokens || n_rows > a->wide_rows) return false;
    for (int64_t i = 0; i < n_rows; i++)
        if (logit_rows[i] != i) return false;
    return !ida_layers_any(&r->m->layers, IDA_LAYER_CACHE);
}

/* From the ids on the device to a->wide. */
static ida_status step_work(const ida_run *r) {
    const ida_device *dev = r->m->dev;
    const ida_acts *a = r->a;
    const int64_t n = r->b->n_tokens, v = r->m->cfg.vocab_size;
    IDA_TRY(ida_run_layers(r));
    IDA_TRY(ida_run_final_norm(r)); /* not as one product: these are the ops of a step that is not recorded, with its bits */
    IDA_TRY(dev->ops->linear_fwd(dev, a->logits, a->xn, &r->m->w.lm_head, NULL, n));
    return dev->ops->from_act(dev, a->wide, a->logits, n * v);
}

static void forget_steps(ida_acts *a) {
    a->dev->memory->record_free(a->dev, a->steps.recording);
    a->steps.recording = NULL;
}

/* Where the device cannot record, the log says why, once for these acts, and their steps run op by op from then on. */
static void record_step(const ida_run *r) {
    const ida_device_memory *mem = r->m->dev->memory;
    ida_steps *s = &r->a->steps;
    ida_status st = mem->record(r->m->dev, &r->seqs);
    if (st == IDA_OK) {
        const ida_status work = step_work(r);
        st = mem->record_end(r->m->dev, work == IDA_OK, &s->recording);
        if (work != IDA_OK) st = work;
    }
    s->off = st != IDA_OK;
    if (s->off) ida_log("steps of one token go op by op: %s", ida_last_error());
}

ida_status ida_run_recorded(ida_run *r, real *logits) {
    const ida_device *dev = r->m->dev;
    ida_acts *a = r->a;
    ida_steps *s = &a->steps;
    const ida_step_key key = {r->m, r->m->prep_block, r->m->params, r->state->block, r->m->matrices, r->seqs.n};
    bool moved = false;
    if (memcmp(&key, &s->key, sizeof key) != 0) {
        forget_steps(a);
        s->key = key;
        s->seen = 0;
    }
    IDA_TRY(ida_run_upload(r));
    if (!s->recording && s->seen >= IDA_STEPS_BEFORE && !s->off) record_step(r);
    if (s->recording) IDA_TRY(dev->memory->replay(dev, s->recording, &r->seqs, &moved));
    if (moved) forget_steps(a); /* this step takes what memory it needs, the next one is recorded */
    if (!s->recording) IDA_TRY(step_work(r));
    s->seen++;
    return ida_dev_download(dev, logits, a->wide, r->b->n_tokens * r->m->cfg.vocab_size * (int64_t)sizeof *logits);
}
