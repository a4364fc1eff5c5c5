/* tokenizer_pipe.c - encodes many strings in one run, for tools/check_tokenizer_oracle.py. Not installed.
 * usage: tokenizer_pipe TOKENIZER.json special(0|1) < strings > ids. Strings: u32 byte count, bytes. Ids: u32 count, int32s. */
#include <stdio.h>
#include <stdlib.h>

#include "idattn.h"

static int fail(const char *what) {
    fprintf(stderr, "tokenizer_pipe: %s\n", what);
    return 1;
}

int main(int argc, char **argv) {
    ida_tokenizer *t = NULL;
    if (argc != 3) return fail("usage: tokenizer_pipe TOKENIZER.json 0|1 < strings > ids");
    if (ida_tokenizer_load(argv[1], &t)) return fail(ida_last_error());
    for (uint32_t n; fread(&n, sizeof n, 1, stdin) == 1;) {
        char *s = malloc((size_t)n + 1), *back;
        int32_t *ids;
        int64_t n_ids;
        size_t n_back;
        if (!s || fread(s, 1, n, stdin) != n) return fail("short input");
        if (ida_tokenizer_encode(t, s, n, argv[2][0] == '1', &ids, &n_ids)) return fail(ida_last_error());
        if (ida_tokenizer_decode(t, ids, n_ids, false, &back, &n_back)) return fail(ida_last_error());
        uint32_t count = (uint32_t)n_ids;
        fwrite(&count, sizeof count, 1, stdout);
        fwrite(ids, sizeof *ids, (size_t)n_ids, stdout);
        ida_string_free(back);
        ida_ids_free(ids);
        free(s);
    }
    ida_tokenizer_free(t);
    return fflush(stdout) ? fail("cannot write") : 0;
}
