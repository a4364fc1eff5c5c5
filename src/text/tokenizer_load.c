/* tokenizer_load.c - from a path to a tokenizer. */
#include "core/file.h"
#include "core/mem.h"
#include "text/files.h"

#define COMPILE_FROM ((int64_t)256 << 10) /* smaller files are read as fast as they are looked up */

/* PATH itself; or, in a folder, tokenizer.json or else tokenizer.model. */
static ida_status file_path(const char *path, char **file) {
    if (ida_is_dir(path)) {
        *file = ida_path_join(path, "tokenizer.json");
        if (*file && !ida_exists(*file)) {
            char *model = ida_path_join(path, "tokenizer.model");
            if (model && ida_exists(model)) {
                ida_free(*file);
                *file = model;
            } else {
                ida_free(model);
            }
        }
    } else {
        *file = ida_strdup(path);
    }
    IDA_FAIL_IF(!*file, IDA_E_NOMEM, "%s: out of memory", path);
    return IDA_OK;
}

ida_status ida_tokenizer_load(const char *path, ida_tokenizer **out) {
    IDA_NEED(path);
    IDA_NEED(out);
    char *file, *text = NULL;
    int64_t n;
    IDA_TRY(file_path(path, &file));
    ida_status st = ida_read_file(file, IDA_TOKENIZER_MAX_BYTES, &text, &n);
    if (!st && n < COMPILE_FROM) st = ida_tokenizer_parse(text, (size_t)n, file, out);
    else if (!st) st = ida_tokenizer_parse_cached(text, n, file, out);
    ida_free(text);
    ida_free(file);
    return st;
}
