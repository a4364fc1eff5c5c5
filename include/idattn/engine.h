/* idattn/engine.h - running a model: sessions with their states, sampling, generation. */
#ifndef IDATTN_ENGINE_H
#define IDATTN_ENGINE_H

#include "idattn/model.h"
#include "idattn/text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- session: one timeline of fixed-size state */

typedef struct ida_session ida_session;

/* Position 0, zero state. Softmax layers grow a key/value cache as they go; all other mixers use constant memory. */
IDA_API ida_status ida_session_create(const ida_model *m, ida_session **out);
IDA_API void ida_session_free(ida_session *s);
IDA_API void ida_session_reset(ida_session *s);
IDA_API ida_status ida_session_clone(const ida_session *s, ida_session **out);
IDA_API int64_t ida_session_position(const ida_session *s);
IDA_API int64_t ida_session_bytes(const ida_session *s);
/* Appends n >= 1 ids. n == 1 takes the step form; more run in pieces of constant memory. logits, when not NULL, gets
 * [vocab_size] of the last id. IDA_E_ARG (a bad id) leaves the session as it was; any other failure resets it (the message says
 * so). The same holds for ida_session_score. */
IDA_API ida_status ida_session_feed(ida_session *s, const int32_t *ids, int64_t n, float *logits);
/* Appends n ids and writes losses[i] = -log p(targets[i] | everything up to ids[i]) in nats; 0 where targets[i] < 0. */
IDA_API ida_status ida_session_score(ida_session *s, const int32_t *ids, const int32_t *targets, int64_t n, float *losses);
/* State file: magic, version, model hash, token count, state, checksum (docs/formats.md). Load refuses another model's. */
IDA_API ida_status ida_session_save(const ida_session *s, const char *path);
IDA_API ida_status ida_session_load(ida_session *s, const char *path);

typedef struct ida_sample_options {
    double temperature;          /* 0 = greedy */
    int64_t top_k;               /* 0 = off */
    double top_p, min_p;         /* 1 and 0 = off */
    uint64_t seed;
    int64_t max_tokens;          /* -1 = until a stop */
    const char *const *stop;     /* stop strings; none of their text is emitted */
    int64_t n_stop;
    bool ignore_eos;
} ida_sample_options;
IDA_API void ida_sample_defaults(ida_sample_options *o); /* those of ida_options_json("sample") */
/* Samples one id from logits [n]; a pure function of (logits, options, index). */
/* Order: temperature, top_k, top_p (smallest set of the likeliest that reaches it), min_p (relative to the likeliest). Equal
 * logits rank by lower id. -inf is a masked id; NaN, +inf or nothing but -inf is IDA_E_NUMERIC. */
IDA_API ida_status ida_sample(const float *logits, int64_t n, const ida_sample_options *o, uint64_t index, int32_t *id);
typedef enum ida_finish { IDA_FINISH_STOP = 0, IDA_FINISH_LENGTH = 1, IDA_FINISH_CANCELLED = 2 } ida_finish;
/* Whole UTF-8 characters only (invalid bytes come as they are once it is sure they are invalid). Also called with n = 0
 * (bytes "") before each piece of the prompt and each token, so that it can cancel while there is no text. Non-zero cancels. */
typedef int ida_text_fn(void *user, const char *bytes, size_t n);
/* Continues a session after `prompt` (may be 0 ids when the session is not at position 0). Step form, constant memory. The
 * session advances by n_prompt + *n_generated: the end-of-text token that stops is neither appended nor counted. Draw i uses the
 * session's position as index, so a text generated in two calls equals one generated in one. Cancelled within the prompt, the
 * session holds the pieces read so far (ida_session_position) and nothing is generated. emit may be NULL. */
IDA_API ida_status ida_generate(ida_session *s, const ida_tokenizer *t, const int32_t *prompt, int64_t n_prompt,
                                const ida_sample_options *o, ida_text_fn *emit, void *user, int64_t *n_generated,
                                ida_finish *finish);

#ifdef __cplusplus
}
#endif
#endif
