/* generate.c - ida_generate: sample, append, show, until a stop. Not here: the choice of an id (sampler.c), the text (emitter.c).
 * Invariant: after every token the session holds exactly prompt + counted tokens; a token allocates nothing of ours. */
#include "infer/emitter.h"
#include "infer/sampler.h"
#include "infer/session.h"

#include "core/mem.h"
#include "text/decoder.h"

typedef struct run {
    ida_session *s;
    const ida_tokenizer *t;
    const ida_sample_options *o;
    ida_emitter *e;
    ida_decoder *d;
    ida_candidate *scratch;
    int64_t vocab, eos, count;
    ida_finish finish;
} run;

static int64_t longest_piece(const ida_tokenizer *t, int64_t vocab) {
    size_t most = 0, n = 0;
    for (int64_t id = 0; id < vocab; id++) {
        if (ida_tokenizer_piece(t, id, &n, NULL) && n > most) most = n;
    }
    return (int64_t)most;
}

/* The text that an id adds; an id without a token adds none. */
static ida_status text_of(run *r, int32_t id, const char **text, size_t *n) {
    return ida_decoder_push(r->d, &id, ida_tokenizer_piece(r->t, id, NULL, NULL) ? 1 : 0, text, n);
}

static ida_status loop(run *r) {
    while (r->o->max_tokens < 0 || r->count < r->o->max_tokens) {
        int32_t id;
        ida_emitter_poll(r->e);
        if (ida_emitter_cancelled(r->e)) {
            r->finish = IDA_FINISH_CANCELLED;
            return IDA_OK;
        }
        IDA_TRY(ida_sample_with(r->s->logits, r->vocab, r->o, (uint64_t)ida_session_position(r->s), r->scratch, &id));
        if (id == r->eos && !r->o->ignore_eos) {
            r->finish = IDA_FINISH_STOP;
            return IDA_OK;
        }
        IDA_TRY(ida_session_feed(r->s, &id, 1, NULL));
        r->count++;
        size_t n = 0;
        const char *text;
        IDA_TRY(text_of(r, id, &text, &n));
        ida_emitter_put(r->e, text, n);
        if (ida_emitter_stopped(r->e) || ida_emitter_cancelled(r->e)) {
            r->finish = ida_emitter_cancelled(r->e) ? IDA_FINISH_CANCELLED : IDA_FINISH_STOP;
            return IDA_OK;
        }
    }
    r->finish = IDA_FINISH_LENGTH;
    return IDA_OK;
}

static bool prompt_stop(void *user) {
    ida_emitter *e = user;
    ida_emitter_poll(e);
    return ida_emitter_cancelled(e);
}

static ida_status prepare(run *r, const int32_t *prompt, int64_t n_prompt, ida_text_fn *emit, void *user) {
    const ida_sample_options *o = r->o;
    IDA_TRY(ida_sample_check(o));
    IDA_FAIL_IF(n_prompt < 0 || (n_prompt == 0 && ida_session_position(r->s) == 0), IDA_E_ARG,
                "an empty prompt and a session at position 0: nothing to continue; give at least one id "
                "(the end-of-text token starts a document)");
    /* A model padded beyond its tokenizer never draws an id that has no text. */
    int64_t ids = ida_tokenizer_vocab_size(r->t), model_ids = r->s->model->cfg.vocab_size;
    r->vocab = ids < model_ids ? ids : model_ids;
    IDA_FAIL_IF(r->vocab < 1, IDA_E_ARG, "the tokenizer has no ids");
    r->eos = ida_tokenizer_eos(r->t);
    IDA_TRY(ida_emitter_new(o->stop, o->n_stop, longest_piece(r->t, r->vocab), emit, user, &r->e));
    IDA_TRY(ida_decoder_create_bytes(r->t, true, ida_session_position(r->s) > 0, &r->d));
    for (int64_t i = 0; i < n_prompt; i++) { /* what the prompt begins, the generated text goes on with */
        const char *text;
        size_t n;
        IDA_TRY(text_of(r, prompt[i], &text, &n));
    }
    if (o->temperature > 0) IDA_TRY(IDA_ALLOC(r->scratch, r->vocab, "sampling"));
    return n_prompt > 0 ? ida_session_feed_until(r->s, prompt, n_prompt, prompt_stop, r->e) : IDA_OK;
}

ida_status ida_generate(ida_session *s, const ida_tokenizer *t, const int32_t *prompt, int64_t n_prompt,
                        const ida_sample_options *o, ida_text_fn *emit, void *user, int64_t *n_generated, ida_finish *finish) {
    IDA_NEED(s);
    IDA_NEED(t);
    IDA_NEED(o);
    IDA_FAIL_IF(n_prompt > 0 && !prompt, IDA_E_ARG, "prompt is NULL, n_prompt %lld", (long long)n_prompt);
    run r = { .s = s, .t = t, .o = o };
    ida_status st = prepare(&r, prompt, n_prompt, emit, user);
    if (st == IDA_OK) st = loop(&r);
    if (st == IDA_OK && r.finish != IDA_FINISH_CANCELLED) {
        ida_emitter_flush(r.e);
        if (ida_emitter_cancelled(r.e)) r.finish = IDA_FINISH_CANCELLED;
    }
    if (st == IDA_OK && n_generated) *n_generated = r.count;
    if (st == IDA_OK && finish) *finish = r.finish;
    ida_emitter_free(r.e);
    ida_decoder_free(r.d);
    ida_free(r.scratch);
    return st;
}
