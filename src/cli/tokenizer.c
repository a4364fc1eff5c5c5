/* tokenizer.c - `idattn tokenizer train|encode|decode`. */
#include <ctype.h>
#include <errno.h>
#include <libgen.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"
#include "common.h"

static const size_t MAX_TEXT_BYTES = (size_t)4 << 30;

/* Refuses an output that is one of the inputs, or that could not be written after the work is done. */
static int check_output(const options *o, const char *out) {
    struct stat to, from;
    char dir[4096];
    if (stat(out, &to) == 0) {
        for (int64_t i = 0; i < o->n_args; i++)
            if (stat(o->args[i], &from) == 0 && from.st_dev == to.st_dev && from.st_ino == to.st_ino)
                return usage_error(o->cmd, "--out %s is also an input; give another file", out);
    }
    if (snprintf(dir, sizeof dir, "%s", out) >= (int)sizeof dir) return usage_error(o->cmd, "--out is longer than a path can be");
    if (access(dirname(dir), W_OK) != 0)
        return fail_text(o, "--out %s: cannot write into its folder: %s", out, strerror(errno));
    return EXIT_OK;
}

static int run_train(const options *o) {
    progress p;
    ida_tokenizer *t = NULL;
    int rc = begin(o, &p);
    if (rc) return rc;
    const char *out = opt_str(o, "out");
    if (!out) return usage_error(o->cmd, "--out is missing; give the tokenizer.json to write");
    rc = check_output(o, out);
    if (rc) return rc;
    ida_bpe_options *b = options_of(o, "bpe");
    b->inputs = o->args;
    b->n_inputs = o->n_args;
    catch_signals();
    ida_status st = ida_tokenizer_train(b, progress_callback, &p, &t);
    if (st) return fail(o, st, &p);
    progress_end(&p);
    st = ida_tokenizer_save(t, out);
    int64_t n = ida_tokenizer_vocab_size(t);
    uint64_t hash = ida_tokenizer_hash(t);
    ida_tokenizer_free(t);
    if (st) return fail(o, st, &p);
    char hex[17];
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
    if (opt_flag(o, "json"))
        return print_json(o, json_pack("{s:o, s:I, s:s}", "path", json_text(out, strlen(out)), "vocab_size",
                                       (json_int_t)n, "hash", hex));
    progress_line(&p, "%s: %lld tokens", out, (long long)n);
    return EXIT_OK;
}

const command command_tokenizer_train = {
    .name = "tokenizer train",
    .args = "INPUT... --out FILE [options]",
    .summary = "train a byte-level BPE tokenizer (HF tokenizer.json)",
    .text = "INPUT is a .txt or .jsonl file, also .gz or .zst, or - for text on standard input.",
    .min_args = 1,
    .max_args = -1,
    .run = run_train,
    .options = (const option_spec[]){
        {"out", 'o', OPT_TEXT, "FILE", NULL, "the tokenizer.json to write"},
        OPT_OF("bpe", NULL),
        OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};

static int run_encode(const options *o) {
    progress p;
    ida_tokenizer *t = NULL;
    int32_t *ids = NULL;
    int64_t n = 0;
    size_t bytes = 0;
    const char *given = opt_str(o, "text");
    int rc = begin(o, &p);
    if (rc) return rc;
    if (given && o->n_args > 1) return usage_error(o->cmd, "FILE and --text exclude each other");
    ida_status st = ida_tokenizer_load(o->args[0], &t);
    if (st) return fail(o, st, &p);
    char *read = given ? NULL : read_all(o, o->n_args > 1 ? o->args[1] : "-", MAX_TEXT_BYTES, &bytes);
    if (given) bytes = strlen(given);
    if (!given && !read) {
        ida_tokenizer_free(t);
        return EXIT_FAIL;
    }
    unsigned flags = (opt_flag(o, "special") ? IDA_ENCODE_SPECIAL : 0u) | (opt_flag(o, "template") ? IDA_ENCODE_TEMPLATE : 0u);
    st = ida_tokenizer_encode_as(t, given ? given : read, bytes, flags, &ids, &n);
    ida_tokenizer_free(t);
    free(read);
    if (st) return fail(o, st, &p);
    if (opt_flag(o, "json")) {
        printf("{\"n\": %lld, \"bytes\": %zu, \"ids\": [", (long long)n, bytes);
        for (int64_t i = 0; i < n && !ferror(stdout); i++) printf("%s%d", i ? ", " : "", ids[i]);
        printf("]}\n");
    } else {
        for (int64_t i = 0; i < n && !ferror(stdout); i++) printf("%s%d", i ? " " : "", ids[i]);
        putchar('\n');
    }
    ida_ids_free(ids);
    return EXIT_OK;
}

const command command_tokenizer_encode = {
    .name = "tokenizer encode",
    .args = "TOKENIZER [FILE] [options]",
    .summary = "text to token ids",
    .text = "TOKENIZER is a tokenizer.json, a SentencePiece .model, or a folder that holds one. The text is FILE, --text, or "
            "standard input. Any bytes are legal.",
    .min_args = 1,
    .max_args = 2,
    .run = run_encode,
    .options = (const option_spec[]){
        {"text", 0, OPT_TEXT, "TEXT", NULL, "the text itself"},
        {"special", 0, OPT_FLAG, NULL, NULL, "special tokens written in the text become their ids"},
        {"template", 0, OPT_FLAG, NULL, NULL, "add the tokens that begin and end a text (one BOS, never two)"},
        OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};

/* Ids separated by blanks, commas and square brackets. 0, or the exit code. */
static int parse_ids(const options *o, const char *text, size_t n_bytes, int32_t **ids, int64_t *n, int64_t *cap) {
    const char *p = text, *stop = text + n_bytes;
    for (;;) {
        while (p < stop && (isspace((unsigned char)*p) || *p == ',' || *p == '[' || *p == ']')) p++;
        if (p >= stop) return 0;
        char *end;
        errno = 0;
        long v = strtol(p, &end, 10);
        bool whole = end != p && !errno && (end == stop || isspace((unsigned char)*end) || *end == ',' || *end == ']');
        if (!whole || v < 0 || v > INT32_MAX) {
            size_t shown = strcspn(p, " \t\r\n,]");
            return usage_error(o->cmd, "\"%.*s\" is not a token id; give whole numbers of at least 0",
                               (int)(shown < 40 ? shown : 40), p);
        }
        if (*n == *cap) {
            int64_t c = *cap ? 2 * *cap : 1024;
            int32_t *grown = realloc(*ids, (size_t)c * sizeof **ids);
            if (!grown) return fail_text(o, "out of memory");
            *ids = grown;
            *cap = c;
        }
        (*ids)[(*n)++] = (int32_t)v;
        p = end;
    }
}

/* Valid UTF-8, as JSON needs it: U+FFFD stands for bytes that make no character. */
static int decode_text(const options *o, const ida_tokenizer *t, const int32_t *ids, int64_t n, char **text, size_t *bytes) {
    ida_decoder *d = NULL;
    const char *part;
    size_t k;
    ida_status st = ida_decoder_create(t, opt_flag(o, "skip-special"), &d);
    if (!st) st = ida_decoder_push(d, ids, n, &part, &k);
    for (int last = 0; !st && last < 2; last++) {
        char *grown = realloc(*text, *bytes + k + 1);
        if (!grown) {
            ida_decoder_free(d);
            return fail_text(o, "out of memory");
        }
        *text = grown;
        memcpy(grown + *bytes, part, k);
        *bytes += k;
        grown[*bytes] = 0;
        if (!last) st = ida_decoder_end(d, &part, &k);
    }
    ida_decoder_free(d);
    return st ? fail(o, st, NULL) : 0;
}

static int run_decode(const options *o) {
    progress p;
    ida_tokenizer *t = NULL;
    int32_t *ids = NULL;
    int64_t n = 0, cap = 0;
    char *text = NULL, *read = NULL;
    size_t bytes = 0;
    int rc = begin(o, &p);
    if (rc) return rc;
    ida_status st = ida_tokenizer_load(o->args[0], &t);
    if (st) return fail(o, st, &p);
    for (int64_t i = 1; i < o->n_args && !rc; i++) rc = parse_ids(o, o->args[i], strlen(o->args[i]), &ids, &n, &cap);
    if (o->n_args == 1) {
        read = read_all(o, "-", MAX_TEXT_BYTES, &bytes);
        rc = read ? parse_ids(o, read, bytes, &ids, &n, &cap) : EXIT_FAIL;
    }
    bool json = opt_flag(o, "json");
    if (!rc && !json && (st = ida_tokenizer_decode(t, ids, n, opt_flag(o, "skip-special"), &text, &bytes))) rc = fail(o, st, &p);
    if (!rc && json) rc = decode_text(o, t, ids, n, &text, &bytes);
    if (!rc && json) {
        rc = print_json(o, json_pack("{s:o, s:I}", "text", json_text(text, bytes), "n", (json_int_t)n));
    } else if (!rc) {
        fwrite(text, 1, bytes, stdout);
    }
    ida_string_free(text);
    ida_tokenizer_free(t);
    free(ids);
    free(read);
    return rc;
}

const command command_tokenizer_decode = {
    .name = "tokenizer decode",
    .args = "TOKENIZER [ID...] [options]",
    .summary = "token ids to text",
    .text = "The ids are arguments or, without any, standard input; blanks, commas and square brackets separate them. The "
            "bytes are written as they are, with no newline added; --json has U+FFFD for bytes that make no character.",
    .min_args = 1,
    .max_args = -1,
    .run = run_decode,
    .options = (const option_spec[]){{"skip-special", 0, OPT_FLAG, NULL, NULL, "leave special tokens out"},
                                     OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};
