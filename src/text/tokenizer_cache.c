/* tokenizer_cache.c - the folder of compiled tokenizers: $XDG_CACHE_HOME/idattn, else $HOME/.cache/idattn. Entries are named by
 * the hash of their tokenizer.json, written beside and renamed, so that processes may share the folder; the KEEP used last stay.
 * Invariant: whatever is wrong with the folder or an entry costs time, nothing else. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/file.h"
#include "core/mem.h"
#include "text/files.h"

enum { KEEP = 16 };
#define PREFIX "tokenizer-"

typedef struct entry { char *path; struct timespec used; } entry;

/* NULL: there is none. A home folder that is not there is not made (accounts of services have none). */
static char *cache_dir(void) {
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (base && base[0] == '/') return ida_path_join(base, "idattn");
    return home && home[0] == '/' && ida_is_dir(home) ? ida_asprintf("%s/.cache/idattn", home) : NULL;
}

static int by_use(const void *a, const void *b) {
    const struct timespec *x = &((const entry *)a)->used, *y = &((const entry *)b)->used;
    if (x->tv_sec != y->tv_sec) return x->tv_sec > y->tv_sec ? -1 : 1;
    return x->tv_nsec == y->tv_nsec ? 0 : x->tv_nsec > y->tv_nsec ? -1 : 1;
}

/* Also takes what a killed process left half-written: such a file grows old like any other. */
static void prune(const char *dir) {
    char **names = NULL;
    int64_t n = 0, k = 0;
    entry *list = NULL;
    if (ida_list_dir(dir, &names, &n)) return;
    if (!IDA_CALLOC(list, n, "cache entries")) {
        for (int64_t i = 0; i < n; i++) {
            struct stat s;
            if (strncmp(names[i], PREFIX, strlen(PREFIX)) != 0) continue;
            list[k].path = ida_path_join(dir, names[i]);
            if (list[k].path && !stat(list[k].path, &s)) list[k++].used = s.st_mtim;
            else ida_free(list[k].path);
        }
        qsort(list, (size_t)k, sizeof *list, by_use);
        for (int64_t i = 0; i < k; i++) {
            if (i >= KEEP) (void)unlink(list[i].path);
            ida_free(list[i].path);
        }
    }
    ida_free(list);
    ida_names_free(names, n);
}

static ida_status load_or_make(const char *text, int64_t n, const char *where, const uint64_t key[2], const char *dir,
                               const char *path, ida_tokenizer **out) {
    if (path && ida_exists(path) && !ida_compiled_load(path, key, out)) {
        (void)utimensat(AT_FDCWD, path, NULL, 0); /* used now */
        return IDA_OK;
    }
    IDA_TRY(ida_tokenizer_parse(text, (size_t)n, where, out));
    if (path && !ida_mkdirs(dir) && !ida_compiled_save(*out, key, path)) prune(dir);
    return IDA_OK;
}

ida_status ida_tokenizer_parse_cached(const char *text, int64_t n, const char *where, ida_tokenizer **out) {
    XXH128_hash_t hash = XXH3_128bits(text, (size_t)n);
    const uint64_t key[2] = {hash.low64, hash.high64};
    char *dir = cache_dir();
    char *path =
        dir ? ida_asprintf("%s/" PREFIX "%016llx%016llx", dir, (unsigned long long)key[1], (unsigned long long)key[0]) : NULL;
    ida_status st = load_or_make(text, n, where, key, dir, path, out);
    ida_free(path);
    ida_free(dir);
    return st;
}
