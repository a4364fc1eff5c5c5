/* generate.c - `idattn generate`: text as it comes, from a prompt or from a saved session.
 * Invariant: what is printed is whole characters; the state file holds exactly the tokens that were read and generated. */
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "common.h"

static const size_t MAX_PROMPT_BYTES = (size_t)1 << 30;

typedef struct sink {
    bool keep; /* --json: collect; else print as it comes */
    char *text;
    size_t len, cap;
    bool failed;
    double first; /* seconds when the first text came, 0 = not yet */
} sink;

static int emit(void *user, const char *bytes, size_t n) {
    sink *s = user;
    if (n == 0) return interrupted();
    if (s->first == 0) s->first = monotonic_seconds();
    if (!s->keep) {
        fwrite(bytes, 1, n, stdout);
        s->failed = fflush(stdout) != 0 || ferror(stdout);
        return s->failed || interrupted();
    }
    if (s->len + n + 1 > s->cap) {
        size_t cap = 2 * (s->len + n + 1);
        char *grown = realloc(s->text, cap);
        if (!grown) return s->failed = true;
        s->text = grown;
        s->cap = cap;
    }
    memcpy(s->text + s->len, bytes, n);
    s->text[s->len += n] = 0;
    return interrupted();
}

/* The prompt's bytes: --prompt, --prompt-file or, when it is not a terminal, standard input. NULL with *rc = 0: none. */
static char *prompt_text(const options *o, size_t *n, int *rc) {
    const char *given = opt_str(o, "prompt"), *file = opt_str(o, "prompt-file");
    char *text = NULL;
    *rc = 0;
    *n = 0;
    if (given && file) {
        *rc = usage_error(o->cmd, "--prompt and --prompt-file exclude each other");
    } else if (given) {
        text = strdup(given);
        *n = strlen(given);
    } else if (file || (!opt_str(o, "state-in") && !isatty(STDIN_FILENO))) {
        text = read_all(o, file ? file : "-", MAX_PROMPT_BYTES, n);
        if (!text) *rc = EXIT_FAIL;
    }
    return text;
}

/* Prompt ids. A session at position 0 starts with the token that starts documents in training, exactly once. */
static int prompt_ids(const options *o, const ida_model *m, const ida_tokenizer *t, int64_t position, int32_t **ids, int64_t *n) {
    size_t bytes;
    int rc;
    int32_t *enc = NULL;
    int64_t n_enc = 0;
    char *text = prompt_text(o, &bytes, &rc);
    if (rc) return rc;
    const ida_config *cfg = ida_model_config(m);
    int64_t start = cfg->bos_id >= 0 ? cfg->bos_id : ida_tokenizer_bos(t);
    if (start < 0) start = cfg->eos_id >= 0 ? cfg->eos_id : ida_tokenizer_eos(t);
    ida_status st = text ? ida_tokenizer_encode(t, text, bytes, opt_flag(o, "special"), &enc, &n_enc) : IDA_OK;
    free(text);
    if (st) return fail(o, st, NULL);
    bool typed = n_enc > 0 && enc[0] == start;
    bool add = position == 0 && start >= 0 && start < cfg->vocab_size && !opt_flag(o, "no-start") && !typed;
    if (typed && !opt_flag(o, "no-start"))
        fprintf(stderr, "idattn %s: the prompt begins with the document-start token; no other is put before it\n", o->cmd->name);
    *ids = malloc(((size_t)n_enc + 1) * sizeof **ids);
    if (!*ids) {
        ida_ids_free(enc);
        return fail_text(o, "out of memory");
    }
    *n = 0;
    if (add) (*ids)[(*n)++] = (int32_t)start;
    if (n_enc) memcpy(*ids + *n, enc, (size_t)n_enc * sizeof *enc);
    *n += n_enc;
    ida_ids_free(enc);
    if (*n == 0 && position == 0)
        return usage_error(o->cmd, "the prompt is empty and the model has no token to start with; give --prompt");
    return 0;
}

static const char *finish_name(ida_finish f) {
    return f == IDA_FINISH_STOP ? "stop" : f == IDA_FINISH_LENGTH ? "length" : "cancelled";
}

static int summary(const options *o, const ida_session *s, const sink *out, int64_t n_prompt, int64_t n, ida_finish f,
                   double begun, double end) {
    double first = out->first > 0 ? out->first : end, span = end - first;
    json_t *text = json_text(out->text ? out->text : "", out->len);
    const ida_sample_options *sample = options_of(o, "sample");
    json_t *j = json_pack("{s:o, s:s, s:I, s:I, s:f, s:f, s:I, s:I, s:o}", "text", text, "finish_reason",
                          finish_name(f), "prompt_tokens", (json_int_t)n_prompt, "generated_tokens", (json_int_t)n,
                          "first_text_s", first - begun, "tokens_per_s",
                          n > 1 && span > 0 ? (double)(n - 1) / span : 0.0, "position",
                          (json_int_t)ida_session_position(s), "session_bytes", (json_int_t)ida_session_bytes(s),
                          "seed", json_seed(sample->seed));
    return print_json(o, j);
}

static int generate(const options *o, const ida_model *m, const ida_tokenizer *t, ida_session *s, progress *p) {
    int32_t *ids = NULL;
    int64_t n_ids = 0, n = 0;
    ida_finish f = IDA_FINISH_LENGTH;
    sink out = {.keep = opt_flag(o, "json")};
    ida_status st;
    if (opt_str(o, "state-in") && (st = ida_session_load(s, opt_str(o, "state-in")))) return fail(o, st, p);
    int rc = prompt_ids(o, m, t, ida_session_position(s), &ids, &n_ids);
    double begun = monotonic_seconds();
    if (!rc) {
        if (opt_flag(o, "echo") && !out.keep) {
            char *text = NULL;
            size_t bytes;
            if (!ida_tokenizer_decode(t, ids, n_ids, true, &text, &bytes)) fwrite(text, 1, bytes, stdout);
            ida_string_free(text);
        }
        catch_signals();
        st = ida_generate(s, t, ids, n_ids, options_of(o, "sample"), emit, &out, &n, &f);
        if (st && !(st == IDA_E_CANCELLED)) rc = fail(o, st, p);
    }
    double end = monotonic_seconds();
    if (!rc && out.failed && out.keep) rc = fail_text(o, "out of memory");
    if (!rc && !out.keep && !out.failed && out.first > 0) putchar('\n');
    if (!rc && opt_str(o, "state-out") && (st = ida_session_save(s, opt_str(o, "state-out")))) rc = fail(o, st, p);
    if (!rc && out.keep) rc = summary(o, s, &out, n_ids, n, f, begun, end);
    free(out.text);
    free(ids);
    return rc;
}

static int run_generate(const options *o) {
    progress p;
    ida_model *m = NULL;
    ida_session *s = NULL;
    ida_tokenizer *t = NULL;
    ida_status st;
    int rc = begin(o, &p);
    if (rc) return rc;
    rc = open_model(o, o->args[0], true, &m, &t);
    if (!rc && ida_tokenizer_vocab_size(t) > ida_model_config(m)->vocab_size)
        rc = fail_text(o, "the tokenizer has %lld tokens, the model %lld; they do not belong together",
                       (long long)ida_tokenizer_vocab_size(t), (long long)ida_model_config(m)->vocab_size);
    if (!rc && (st = ida_session_create(m, &s))) rc = fail(o, st, &p);
    if (!rc) rc = generate(o, m, t, s, &p);
    ida_session_free(s);
    ida_tokenizer_free(t);
    ida_model_free(m);
    return rc;
}

const command command_generate = {
    .name = "generate",
    .args = "MODEL [--prompt TEXT] [options]",
    .summary = "continue a text",
    .text = "The prompt is --prompt, --prompt-file, or standard input when it is not a terminal. Text is printed as it "
            "comes, never half a character. --state-out saves the session; --state-in goes on from it without reading the "
            "earlier text again.",
    .min_args = 1,
    .max_args = 1,
    .run = run_generate,
    .options = (const option_spec[]){
        {"prompt", 'p', OPT_TEXT, "TEXT", NULL, "the text to continue"},
        {"prompt-file", 0, OPT_TEXT, "FILE", NULL, "the same from a file"},
        OPT_TOKENIZER,
        OPT_OF("sample", NULL),
        {"special", 0, OPT_FLAG, NULL, NULL, "special tokens written in the prompt become their ids"},
        {"no-start", 0, OPT_FLAG, NULL, NULL, "do not put the document-start token before the prompt"},
        {"echo", 0, OPT_FLAG, NULL, NULL, "print the prompt too"},
        {"state-in", 0, OPT_TEXT, "FILE", NULL, "go on from a saved session"},
        {"state-out", 0, OPT_TEXT, "FILE", NULL, "save the session at the end"},
        OPT_PLACE, OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};
