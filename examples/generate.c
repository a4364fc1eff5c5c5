/* generate.c - continues a prompt with a trained model. MODEL is a model folder, such as a run's checkpoint.
 * cc generate.c -o generate $(pkg-config --cflags --libs idattn);  ./generate RUN/step-00001000 "The old house" */
#include <idattn.h>
#include <stdio.h>
#include <string.h>

static int print_text(void *user, const char *bytes, size_t n) {
    return fwrite(bytes, 1, n, user) != n; /* non-zero stops */
}

int main(int argc, char **argv) {
    ida_model *model = NULL;
    ida_tokenizer *tokenizer = NULL;
    ida_session *session = NULL;
    ida_sample_options options;
    ida_finish finish;
    int32_t *ids = NULL;
    int64_t n_ids = 0, n = 0;
    if (argc != 3) return fprintf(stderr, "usage: generate MODEL PROMPT\n"), 2;
    ida_sample_defaults(&options);
    int st = ida_model_load(argv[1], &model) || ida_tokenizer_load(argv[1], &tokenizer) ||
             ida_tokenizer_encode(tokenizer, argv[2], strlen(argv[2]), false, &ids, &n_ids) ||
             ida_session_create(model, &session) ||
             ida_generate(session, tokenizer, ids, n_ids, &options, print_text, stdout, &n, &finish);
    if (st) fprintf(stderr, "generate: %s\n", ida_last_error());
    else printf("\n[%lld tokens; the session is %lld bytes]\n", (long long)n, (long long)ida_session_bytes(session));
    ida_session_free(session);
    ida_ids_free(ids);
    ida_tokenizer_free(tokenizer);
    ida_model_free(model);
    return st;
}
