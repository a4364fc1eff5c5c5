/* test_compiled.c - the compiled form of a tokenizer.json and the folder that keeps it: the same tokenizer, damage, processes at
 * once, no home, too many entries. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "text/families.h"

static void compiled_form_is_the_same_tokenizer(void **state) {
    const uint64_t key[2] = {1, 2}, other[2] = {1, 3};
    const char *path = in_dir(*state, "compiled");
    for (int i = 0; i <= FAMILIES; i++) {
        ida_tokenizer *t = i < FAMILIES ? family(i) : load("sp.model"), *again = NULL;
        OK(ida_compiled_save(t, key, path));
        OK(ida_compiled_load(path, key, &again));
        assert_true(ida_tokenizer_hash(t) == ida_tokenizer_hash(again));
        check_ids(again, i < FAMILIES ? families[i] : "sp");
        if (i < FAMILIES) check_texts(again, families[i]);
        ida_tokenizer_free(again);
        again = NULL;
        assert_int_equal(ida_compiled_load(path, other, &again), IDA_E_FORMAT);
        assert_null(again);
        ida_tokenizer_free(t);
    }
}

static void damaged_compiled_files_are_refused(void **state) {
    const uint64_t key[2] = {1, 2};
    const char *path = in_dir(*state, "compiled"), *bad = in_dir(*state, "bad");
    ida_tokenizer *t = load("metaspace.json"), *again = NULL;
    OK(ida_compiled_save(t, key, path));
    int64_t n;
    char *bytes = get_file(path, &n);
    for (int64_t cut = 0; cut < n; cut += 1 + n / 60) {
        put_file(bad, bytes, cut);
        assert_int_not_equal(ida_compiled_load(bad, key, &again), IDA_OK);
    }
    for (int64_t at = 0; at < n; at += at < 128 ? 1 : 1 + n / 200) {
        bytes[at] ^= 0x41;
        put_file(bad, bytes, n);
        assert_int_not_equal(ida_compiled_load(bad, key, &again), IDA_OK);
        bytes[at] ^= 0x41;
    }
    assert_null(again);
    free(bytes);
    ida_tokenizer_free(t);
}

static int64_t entries(const char *dir) {
    char **names = NULL;
    int64_t n = 0;
    if (ida_list_dir(dir, &names, &n)) return 0;
    ida_names_free(names, n);
    return n;
}

static void large_file_is_compiled_once(void **state) {
    int64_t n;
    const char *path = in_dir(*state, "large.json"), *cache = in_dir(*state, "cache"), *inside = in_dir(*state, "cache/idattn");
    char *text = get_file(FOLDER "metaspace.json", &n), *large = malloc((size_t)n + 300000);
    memcpy(large, text, (size_t)n);
    memset(large + n, ' ', 300000);
    put_file(path, large, n + 300000);
    setenv("XDG_CACHE_HOME", cache, 1);
    ida_tokenizer *t = NULL;
    for (int round = 0; round < 4; round++) { /* made, used, made again after damage; then the folder cannot be written */
        if (round == 2) {
            char **names;
            int64_t k;
            OK(ida_list_dir(inside, &names, &k));
            put_file(in_dir(inside, names[0]), "damage", 6);
            ida_names_free(names, k);
        }
        if (round == 3) setenv("XDG_CACHE_HOME", path, 1); /* a file, not a folder */
        OK(ida_tokenizer_load(path, &t));
        check_ids(t, "metaspace");
        ida_tokenizer_free(t);
        assert_int_equal(entries(inside), 1);
    }
    setenv("XDG_CACHE_HOME", cache, 1);
    large[n + 5] = '\n'; /* other bytes, another entry */
    put_file(path, large, n + 300000);
    OK(ida_tokenizer_load(path, &t));
    assert_int_equal(entries(inside), 2);
    ida_tokenizer_free(t);
    free(large);
    free(text);
}

/* A file of 300 KB, the same tokenizer as ever, other bytes for every number. */
static void put_large(const char *path, int number) {
    int64_t n;
    char *text = get_file(FOLDER "metaspace.json", &n), *large = malloc((size_t)n + 300000);
    memcpy(large, text, (size_t)n);
    memset(large + n, ' ', 300000);
    for (int i = 0; i < 8; i++)
        if (number >> i & 1) large[n + i] = '\n';
    put_file(path, large, n + 300000);
    free(large);
    free(text);
}

static void the_cache_keeps_what_was_used_last_and_makes_no_home(void **state) {
    const char *path = in_dir(*state, "many.json"), *home = in_dir(*state, "home");
    const char *inside = in_dir(*state, "home/.cache/idattn");
    char *old = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    ida_tokenizer *t = NULL;
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", home, 1);
    put_large(path, 0);
    OK(ida_tokenizer_load(path, &t));
    ida_tokenizer_free(t);
    assert_false(ida_exists(home));
    mkdir(home, 0700);
    OK(ida_tokenizer_load(path, &t));
    ida_tokenizer_free(t);
    assert_int_equal(entries(inside), 1);
    char **first = NULL;
    int64_t k;
    OK(ida_list_dir(inside, &first, &k));
    for (int number = 1; number <= 20; number++) {
        put_large(path, number);
        OK(ida_tokenizer_load(path, &t));
        ida_tokenizer_free(t);
        put_large(path, 0); /* the first is used again and again */
        OK(ida_tokenizer_load(path, &t));
        ida_tokenizer_free(t);
        assert_int_equal(entries(inside), number < 16 ? number + 1 : 16);
    }
    assert_true(ida_exists(in_dir(inside, first[0])));
    ida_names_free(first, k);
    if (old) setenv("HOME", old, 1);
    free(old);
}

/* Processes that start at once on an empty cache: all have the tokenizer, one entry is left, and it is whole. */
static void processes_share_the_cache(void **state) {
    enum { CHILDREN = 6 };
    const char *path = in_dir(*state, "shared.json"), *inside = in_dir(*state, "shared/idattn");
    setenv("XDG_CACHE_HOME", in_dir(*state, "shared"), 1);
    put_large(path, 77);
    pid_t child[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        child[i] = fork();
        assert_true(child[i] >= 0);
        if (child[i]) continue;
        ida_tokenizer *t = NULL;
        _exit(ida_tokenizer_load(path, &t) != IDA_OK);
    }
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(entries(inside), 1);
    ida_tokenizer *t = NULL;
    OK(ida_tokenizer_load(path, &t));
    check_ids(t, "metaspace");
    ida_tokenizer_free(t);
    unsetenv("XDG_CACHE_HOME");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compiled_form_is_the_same_tokenizer),
        cmocka_unit_test(damaged_compiled_files_are_refused),
        cmocka_unit_test(large_file_is_compiled_once),
        cmocka_unit_test(the_cache_keeps_what_was_used_last_and_makes_no_home),
        cmocka_unit_test(processes_share_the_cache),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
