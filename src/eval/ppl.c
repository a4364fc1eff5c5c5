/* ppl.c - perplexity of a packed set or of one text. Not here: reading shards (data) and running the model (infer).
 * Invariant: every token of every document but its first input is scored exactly once, whatever the window; sums run in double
 * in stream order. */
#include <math.h>
#include <string.h>

#include "idattn/engine.h"
#include "idattn/eval.h"
#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"
#include "data/dataset.h"
#include "eval/eval.h"

enum { PIECE = 2048 };

#define T ida_ppl_options
static const ida_field rows[] = {
    IDA_ROW_TEXT(T, "data", data_dir, NULL, "DIR", .letter = 'd',
                 .help = "packed set; its validation shards are scored"),
    IDA_ROWS_SOURCE(T),
    IDA_ROW_BOOL(T, "train_split", use_train, false, .help = "score the training shards instead"),
    IDA_ROW_TEXT(T, "text", text_path, NULL, "FILE", .help = "a text file, as one document"),
    IDA_ROW_INT(T, "window", window, 0, 1, IDA_ANY_INT, .flags = IDA_FIELD_DERIVED, .help = "context length"),
    IDA_ROW_INT(T, "stride", stride, 0, 0, IDA_ANY_INT, .help = "new tokens in each window", .note = "0 = the window"),
    IDA_ROW_BOOL(T, "carry_state", carry_state, false, .flags = IDA_FIELD_ARGUMENT,
                 .help = "one pass over a document, no window; not for softmax layers"),
    IDA_ROW_INT(T, "max_tokens", max_tokens, 0, 0, IDA_ANY_INT, .help = "stop after this many scored tokens",
                .note = "0 = all"),
};
#undef T
const ida_fields ida_ppl_fields = IDA_FIELDS("ppl", "", ida_ppl_options, rows);

static const int64_t MAX_TEXT_BYTES = INT64_C(1) << 32;

/* Where ids come from: a packed set, or ids in memory. */
typedef struct source {
    const ida_dataset *set;
    const int32_t *ids;
} source;

typedef struct scorer {
    const ida_ppl_options *o;
    const ida_tokenizer *t; /* NULL: bytes and words are not counted */
    ida_session *session;
    ida_progress_fn *progress;
    void *user;
    int32_t ids[PIECE + 1], targets[PIECE];
    float losses[PIECE];
    double nats;
    int64_t documents, tokens, bytes, words, total; /* total: tokens to score, for the progress */
    bool in_word;
} scorer;

static ida_status read_ids(const source *s, int64_t pos, int64_t n, int32_t *out) {
    if (s->set) return ida_dataset_read(s->set, pos, n, out);
    memcpy(out, s->ids + pos, (size_t)n * sizeof *out);
    return IDA_OK;
}

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Bytes of a scored token, and the words that begin in it: a word is a run of bytes that are not ASCII white space. */
static void count_text(scorer *s, int32_t id) {
    size_t n = 0;
    bool special = false;
    const char *piece = ida_tokenizer_piece(s->t, id, &n, &special);
    if (!piece || special) return;
    s->bytes += (int64_t)n;
    for (size_t i = 0; i < n; i++) {
        bool blank = is_blank(piece[i]);
        if (!blank && !s->in_word) s->words++;
        s->in_word = !blank;
    }
}

/* Inputs [begin, end) of the source from a fresh session; those from `score` on are scored. */
static ida_status run_window(scorer *s, const source *src, int64_t begin, int64_t score, int64_t end) {
    ida_session_reset(s->session);
    for (int64_t at = begin; at < end;) {
        int64_t n = end - at < PIECE ? end - at : PIECE;
        IDA_TRY(read_ids(src, at, n + 1, s->ids));
        for (int64_t i = 0; i < n; i++) s->targets[i] = at + i >= score ? s->ids[i + 1] : -1;
        IDA_TRY(ida_session_score(s->session, s->ids, s->targets, n, s->losses));
        for (int64_t i = 0; i < n; i++) {
            if (s->targets[i] < 0) continue;
            IDA_FAIL_IF(!isfinite(s->losses[i]), IDA_E_NUMERIC,
                        "the loss at token %lld is not finite: the model is damaged or diverged", (long long)(at + i + 1));
            s->nats += (double)s->losses[i];
            s->tokens++;
            if (s->t) count_text(s, s->targets[i]);
        }
        at += n;
        if (s->progress && s->progress(s->user, "scoring", s->tokens, s->total)) IDA_FAIL(IDA_E_CANCELLED, "stopped");
    }
    return IDA_OK;
}

static ida_status score_document(scorer *s, const source *src, int64_t begin, int64_t end) {
    int64_t n = end - begin - 1, done = 0;
    int64_t room = s->o->max_tokens > 0 ? s->o->max_tokens - s->tokens : INT64_MAX;
    if (n > room) n = room;
    int64_t window = s->o->carry_state ? n : s->o->window;
    int64_t stride = s->o->carry_state || s->o->stride == 0 ? window : s->o->stride;
    s->documents++;
    s->in_word = false;
    while (done < n) {
        int64_t fresh = done == 0 ? window : stride;
        if (fresh > n - done) fresh = n - done;
        int64_t stop = done + fresh, start = stop > window ? stop - window : 0;
        IDA_TRY(run_window(s, src, begin + start, begin + done, begin + stop));
        done = stop;
    }
    return IDA_OK;
}

static ida_status score_set(scorer *s, const ida_config *cfg, uint64_t tokenizer_hash, bool has_tokenizer) {
    ida_dataset *d = NULL;
    int64_t *starts = NULL, n_docs = 0;
    const ida_dataset_options from = {.path = s->o->data_dir, .source = &s->o->source, .vocab = cfg->vocab_size};
    ida_status st = ida_dataset_open_as(&from, s->o->use_train ? "train" : "val", &d);
    if (st) return st;
    int64_t vocab = ida_dataset_vocab(d), all = 0;
    if (vocab > cfg->vocab_size)
        IDA_FAIL_GOTO(IDA_E_ARG, "%s has ids up to %lld, the model's vocabulary is %lld: they do not belong together",
                      s->o->data_dir, (long long)vocab - 1, (long long)cfg->vocab_size);
    uint64_t packed_with = ida_dataset_tokenizer_hash(d); /* 0: shards of others do not tell */
    if (has_tokenizer && packed_with && packed_with != tokenizer_hash)
        IDA_FAIL_GOTO(IDA_E_ARG, "%s was packed with another tokenizer than the one given", s->o->data_dir);
    IDA_TRY_GOTO(ida_dataset_docs(d, &starts, &n_docs));
    for (int64_t i = 0; i < n_docs; i++) all += starts[i + 1] > starts[i] ? starts[i + 1] - starts[i] - 1 : 0;
    s->total = s->o->max_tokens > 0 && s->o->max_tokens < all ? s->o->max_tokens : all;
    source src = {.set = d};
    for (int64_t i = 0; i < n_docs && (s->tokens < s->total || s->total == all); i++)
        IDA_TRY_GOTO(score_document(s, &src, starts[i], starts[i + 1]));
    if (!s->t && s->tokens == all && ida_dataset_separator(d) >= 0) s->bytes = ida_dataset_bytes(d);
out:
    ida_free(starts);
    ida_dataset_close(d);
    return st;
}

static ida_status score_text(scorer *s, const ida_config *cfg) {
    char *text = NULL;
    int64_t size = 0, n = 0, eos = ida_tokenizer_eos(s->t);
    int32_t *ids = NULL, *with = NULL;
    ida_status st = ida_read_file(s->o->text_path, MAX_TEXT_BYTES, &text, &size);
    if (st) return st;
    IDA_TRY_GOTO(ida_tokenizer_encode(s->t, text, (size_t)size, false, &ids, &n));
    if (ida_tokenizer_vocab_size(s->t) > cfg->vocab_size)
        IDA_FAIL_GOTO(IDA_E_ARG, "the tokenizer has %lld tokens, the model's vocabulary is %lld: they do not belong together",
                      (long long)ida_tokenizer_vocab_size(s->t), (long long)cfg->vocab_size);
    IDA_TRY_GOTO(IDA_ALLOC(with, n + 1, "token ids"));
    int64_t lead = eos >= 0; /* documents begin with it in training; so the text's first token is scored too */
    if (lead) with[0] = (int32_t)eos;
    if (n) memcpy(with + lead, ids, (size_t)n * sizeof *ids);
    int64_t all = n + lead - 1;
    s->total = s->o->max_tokens > 0 && s->o->max_tokens < all ? s->o->max_tokens : all;
    source src = {.ids = with};
    if (n) IDA_TRY_GOTO(score_document(s, &src, 0, n + lead));
out:
    ida_ids_free(ids);
    ida_free(with);
    ida_free(text);
    return st;
}

static ida_status check(const ida_model *m, const ida_tokenizer *t, const ida_ppl_options *o) {
    const ida_config *cfg = ida_model_config(m);
    IDA_FAIL_IF(!o->data_dir == !o->text_path, IDA_E_ARG, "evaluation needs a packed set or a text file, one of the two");
    IDA_FAIL_IF(o->text_path && !t, IDA_E_ARG, "%s: scoring a text needs a tokenizer", o->text_path);
    IDA_TRY(ida_fields_check(&ida_ppl_fields, o));
    if (!o->carry_state) {
        IDA_TRY(ida_fields_check_one(&ida_ppl_fields, o, "window"));
        IDA_FAIL_IF(o->stride > o->window, IDA_E_ARG, "stride is %lld, must be 0..%lld (the window)",
                    (long long)o->stride, (long long)o->window);
        return IDA_OK;
    }
    for (int64_t i = 0; i < cfg->n_layers; i++)
        IDA_FAIL_IF(cfg->layer_mixer[i] == IDA_MIXER_SOFTMAX, IDA_E_ARG,
                    "layer %lld is softmax and has no state of fixed size to carry: score in windows", (long long)i);
    return IDA_OK;
}

#define PROTOCOL_COMMON \
    "every token but the document's first input (the separator) is scored exactly once. The separator that ends a document is " \
    "not scored, while the evaluation during training scores it: the two losses differ. Bytes are the UTF-8 bytes of the " \
    "scored tokens, special tokens 0; words are runs of bytes that are not ASCII white space."
static const char protocol_carry[] =
    "Each document is read once from a zero state that is carried to its end, each token given all tokens before it in the "
    "document; " PROTOCOL_COMMON;
static const char protocol_window[] =
    "Each document is read in windows; the first scores all its tokens, each later one its last `stride` tokens given the "
    "`window - stride` before them; " PROTOCOL_COMMON;
#undef PROTOCOL_COMMON

static ida_status result(const scorer *s, char **json) {
    const ida_ppl_options *o = s->o;
    double loss = s->nats / (double)s->tokens;
    json_t *j = json_pack("{s:s, s:b, s:I, s:I, s:f, s:f}", "protocol", o->carry_state ? protocol_carry : protocol_window,
                          "carry_state", o->carry_state, "documents", (json_int_t)s->documents, "tokens", (json_int_t)s->tokens,
                          "nats", s->nats, "loss", loss);
    IDA_FAIL_IF(!j, IDA_E_NOMEM, "no memory for the result");
    json_object_set_new(j, "perplexity", json_real(exp(loss))); /* absent when it overflows: JSON has no infinity */
    if (!o->carry_state) {
        json_object_set_new(j, "window", json_integer(o->window));
        json_object_set_new(j, "stride", json_integer(o->stride ? o->stride : o->window));
    }
    json_object_set_new(j, o->data_dir ? "split" : "text",
                        ida_json_string(o->data_dir ? o->use_train ? "train" : "val" : o->text_path));
    if (s->bytes > 0) {
        json_object_set_new(j, "bytes", json_integer(s->bytes));
        json_object_set_new(j, "bits_per_byte", json_real(s->nats / ((double)s->bytes * log(2))));
        json_object_set_new(j, "byte_perplexity", json_real(exp(s->nats / (double)s->bytes)));
    }
    if (s->words > 0) {
        json_object_set_new(j, "words", json_integer(s->words));
        json_object_set_new(j, "word_perplexity", json_real(exp(s->nats / (double)s->words)));
    }
    *json = ida_json_dump(j, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    json_decref(j);
    IDA_FAIL_IF(!*json, IDA_E_NOMEM, "no memory for the result");
    return IDA_OK;
}

ida_status ida_eval_ppl(const ida_model *m, const ida_tokenizer *t, const ida_ppl_options *o, ida_progress_fn *p, void *user,
                        char **json) {
    scorer *s = NULL;
    ida_status st;
    IDA_NEED(json);
    *json = NULL;
    IDA_NEED(m);
    IDA_NEED(o);
    IDA_TRY(check(m, t, o));
    IDA_TRY(IDA_CALLOC(s, 1, "evaluation"));
    s->o = o;
    s->t = t;
    s->progress = p;
    s->user = user;
    IDA_TRY_GOTO(ida_session_create(m, &s->session));
    if (o->data_dir) IDA_TRY_GOTO(score_set(s, ida_model_config(m), t ? ida_tokenizer_hash(t) : 0, t != NULL));
    else IDA_TRY_GOTO(score_text(s, ida_model_config(m)));
    if (s->tokens == 0)
        IDA_FAIL_GOTO(IDA_E_FORMAT, "%s: nothing to score: no document has a token after its first input",
                      o->data_dir ? o->data_dir : o->text_path);
    st = result(s, json);
out:
    ida_session_free(s->session);
    ida_free(s);
    return st;
}
