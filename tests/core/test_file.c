/* test_file.c - atomic writes under failure, torn logs, folders, maps. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/file.h"
#include "core/mem.h"
#include "lib/scratch.h"

static int64_t count_names(const char *dir) {
    char **names = NULL;
    int64_t n = 0;
    assert_int_equal(ida_list_dir(dir, &names, &n), IDA_OK);
    ida_names_free(names, n);
    return n;
}

static void assert_content(const char *path, const char *want) {
    int64_t n;
    char *p = get_file(path, &n);
    assert_int_equal(n, strlen(want));
    assert_memory_equal(p, want, (size_t)n);
    free(p);
}

static void a_write_appears_only_at_commit(void **state) {
    const char *dir = in_dir(*state, "atomic");
    assert_int_equal(ida_mkdirs(dir), IDA_OK);
    char path[1100];
    snprintf(path, sizeof path, "%s/f", dir);
    assert_int_equal(ida_write_file(path, "old", 3), IDA_OK);
    ida_writer *w = NULL;
    assert_int_equal(ida_writer_open(path, &w), IDA_OK);
    for (int i = 0; i < 300000; i++) assert_int_equal(ida_writer_put(w, "12345678", 8), IDA_OK);
    assert_content(path, "old");
    assert_int_equal(count_names(dir), 2);
    ida_writer_abort(w);
    assert_content(path, "old");
    assert_int_equal(count_names(dir), 1);
    assert_int_equal(ida_writer_open(path, &w), IDA_OK);
    assert_int_equal(ida_writer_put(w, "????body", 8), IDA_OK);
    assert_int_equal(ida_writer_seek(w, 0), IDA_OK);
    assert_int_equal(ida_writer_put(w, "head", 4), IDA_OK);
    assert_int_equal(ida_writer_commit(w), IDA_OK);
    assert_content(path, "headbody");
    assert_int_equal(count_names(dir), 1);
    assert_int_equal(ida_write_file(path, NULL, 0), IDA_OK);
    assert_content(path, "");
}

static void large_and_small_puts_keep_their_order(void **state) {
    const char *path = in_dir(*state, "order");
    enum { BIG = 3 << 20 };
    char *big = malloc(BIG);
    assert_non_null(big);
    for (int i = 0; i < BIG; i++) big[i] = (char)(i * 31 + i / 257);
    ida_writer *w = NULL;
    assert_int_equal(ida_writer_open(path, &w), IDA_OK);
    assert_int_equal(ida_writer_put(w, big, 5), IDA_OK);
    assert_int_equal(ida_writer_put(w, big + 5, BIG - 10), IDA_OK);
    assert_int_equal(ida_writer_put(w, big + BIG - 5, 5), IDA_OK);
    assert_int_equal(ida_writer_commit(w), IDA_OK);
    int64_t n;
    char *got = get_file(path, &n);
    assert_int_equal(n, BIG);
    assert_memory_equal(got, big, BIG);
    free(got);
    free(big);
}

/* The old file stays, no temporary stays, the message names the file and the cause. */
static void check_failed_write(const char *dir, const char *cause) {
    enum { BIG = 3 << 20 };
    char path[1100];
    snprintf(path, sizeof path, "%s/f", dir);
    assert_int_equal(ida_write_file(path, "old", 3), IDA_OK);
    char *big = calloc(1, BIG);
    assert_non_null(big);
    assert_int_equal(ida_write_file(path, big, BIG), IDA_E_IO);
    assert_non_null(strstr(ida_last_error(), path));
    assert_non_null(strstr(ida_last_error(), cause));
    ida_writer *w = NULL; /* many small puts: the failure shows in one of them or at commit */
    assert_int_equal(ida_writer_open(path, &w), IDA_OK);
    ida_status st = IDA_OK;
    for (int i = 0; i < BIG / 1000 && st == IDA_OK; i++) st = ida_writer_put(w, big, 1000);
    if (st != IDA_OK) assert_int_equal(ida_writer_put(w, big, 1), IDA_E_IO);
    assert_int_equal(ida_writer_commit(w), IDA_E_IO);
    assert_content(path, "old");
    assert_int_equal(count_names(dir), 1);
    free(big);
}

static void L36_file_size_limit_leaves_the_old_file(void **state) {
    const char *dir = in_dir(*state, "limit");
    assert_int_equal(ida_mkdirs(dir), IDA_OK);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 1 << 20;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    check_failed_write(dir, "too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
}

static void L36_full_disk_leaves_the_old_file(void **state) {
    char dir[1024];
    snprintf(dir, sizeof dir, "%s", in_dir(*state, "disk"));
    assert_int_equal(ida_mkdirs(dir), IDA_OK);
    if (!mount_small(dir)) skip(); /* needs root; the size limit above covers the code path */
    check_failed_write(dir, "No space left");
    unmount_small(dir);
}

static void devices_and_folders_are_not_replaced(void **state) {
    assert_int_equal(ida_write_file("/dev/null", "x", 1), IDA_E_IO);
    assert_non_null(strstr(ida_last_error(), "/dev/null"));
    assert_int_equal(ida_write_file(*state, "x", 1), IDA_E_IO);
    assert_int_equal(ida_write_file(in_dir(*state, "absent/f"), "x", 1), IDA_E_IO);
    assert_non_null(strstr(ida_last_error(), "No such file"));
}

static void a_link_keeps_pointing_at_the_written_file(void **state) {
    const char *real = in_dir(*state, "real"), *link = in_dir(*state, "link");
    assert_int_equal(ida_write_file(real, "old", 3), IDA_OK);
    assert_int_equal(symlink("real", link), 0);
    assert_int_equal(ida_write_file(link, "new", 3), IDA_OK);
    assert_content(real, "new");
    struct stat st;
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
}

static void an_unwritable_folder_is_a_clear_error(void **state) {
    const char *dir = in_dir(*state, "locked");
    assert_int_equal(mkdir(dir, 0500), 0);
    if (geteuid() == 0) { /* root may write anywhere: a file in the place of the folder refuses everybody */
        const char *file = in_dir(*state, "plain");
        put_file(file, "x", 1);
        assert_int_equal(ida_write_file(in_dir(*state, "plain/f"), "x", 1), IDA_E_IO);
        assert_int_equal(ida_mkdirs(in_dir(*state, "plain/sub")), IDA_E_IO);
        assert_non_null(strstr(ida_last_error(), "plain"));
        return;
    }
    assert_int_equal(ida_write_file(in_dir(*state, "locked/f"), "x", 1), IDA_E_IO);
    assert_non_null(strstr(ida_last_error(), "Permission denied"));
    assert_int_equal(ida_mkdirs(in_dir(*state, "locked/sub")), IDA_E_IO);
}

static void a_torn_last_line_is_cut_off(void **state) {
    static const struct { const char *before, *after; } rows[] = {
        {"one\ntwo\n{\"to", "one\ntwo\nnew\n"}, {"one\ntwo\n", "one\ntwo\nnew\n"}, {"torn", "new\n"}, {"", "new\n"},
            {"\n", "\nnew\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *path = in_dir(*state, "log");
        put_file(path, rows[i].before, (int64_t)strlen(rows[i].before));
        ida_lines *l = NULL;
        assert_int_equal(ida_lines_open(path, &l), IDA_OK);
        assert_int_equal(ida_lines_add(l, "new"), IDA_OK);
        assert_int_equal(ida_lines_add(l, "a\nb"), IDA_E_ARG);
        ida_lines_close(l);
        assert_content(path, rows[i].after);
    }
    /* a torn line longer than any block that is read at a time */
    const char *path = in_dir(*state, "log");
    char *text = malloc(20000);
    assert_non_null(text);
    memset(text, 'x', 20000);
    memcpy(text, "one\n", 4);
    put_file(path, text, 20000);
    free(text);
    ida_lines *l = NULL;
    assert_int_equal(ida_lines_open(path, &l), IDA_OK);
    ida_lines_close(l);
    assert_content(path, "one\n");
}

static void a_log_line_that_does_not_fit_leaves_no_half_line(void **state) {
    const char *path = in_dir(*state, "log2");
    put_file(path, "one\n", 4);
    ida_lines *l = NULL;
    assert_int_equal(ida_lines_open(path, &l), IDA_OK);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 10;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    ida_status st = ida_lines_add(l, "a line of more than six bytes");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(st, IDA_E_IO);
    assert_content(path, "one\n");
    assert_int_equal(ida_lines_add(l, "two"), IDA_OK);
    assert_content(path, "one\ntwo\n");
    ida_lines_close(l);
}

static void reading_refuses_what_is_not_a_small_enough_regular_file(void **state) {
    char *p = NULL;
    int64_t n = 0;
    ida_map m = {0};
    const char *path = in_dir(*state, "r"), *fifo = in_dir(*state, "fifo");
    put_file(path, "12345", 5);
    assert_int_equal(ida_read_file(path, 4, &p, &n), IDA_E_FORMAT);
    assert_null(p);
    assert_int_equal(ida_read_file(path, 5, &p, &n), IDA_OK);
    assert_int_equal(n, 5);
    assert_string_equal(p, "12345");
    ida_free(p);
    p = NULL;
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(ida_read_file(fifo, 100, &p, &n), IDA_E_IO); /* and does not wait for a writer */
    assert_int_equal(ida_read_file(*state, 100, &p, &n), IDA_E_IO);
    assert_int_equal(ida_read_file(in_dir(*state, "none"), 100, &p, &n), IDA_E_IO);
    assert_int_equal(ida_map_open("/dev/zero", &m), IDA_E_IO);
    assert_int_equal(ida_map_open(path, &m), IDA_OK);
    assert_int_equal(m.size, 5);
    assert_memory_equal(m.data, "12345", 5);
    ida_map_close(&m);
    put_file(path, "", 0);
    assert_int_equal(ida_map_open(path, &m), IDA_OK);
    assert_int_equal(m.size, 0);
    assert_null(m.data);
    ida_map_close(&m);
}

/* The library's mkdir goes through here, so that a test can be the process that is quicker. */
static const char *taken_away; /* this folder, once, before the call that makes one in it */
int mkdir(const char *path, mode_t mode) {
    size_t n = taken_away ? strlen(taken_away) : 0;
    if (n > 0 && strncmp(path, taken_away, n) == 0 && path[n] == '/') {
        assert_int_equal(rmdir(taken_away), 0);
        taken_away = NULL;
    }
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

static void a_folder_taken_away_on_the_way_is_made_again(void **state) {
    size_t made;
    const char *way = in_dir(*state, "way"), *deep = in_dir(*state, "way/a/b");
    assert_int_equal(ida_mkdirs(way), IDA_OK);
    for (int there = 0; there < 2; there++) {
        const char *a = in_dir(*state, "way/a");
        if (there) assert_int_equal(ida_mkdirs(a), IDA_OK);
        taken_away = a;
        assert_int_equal(ida_mkdirs_made(deep, &made), IDA_OK);
        assert_null(taken_away);
        ida_rmdirs(deep, made);
        assert_false(ida_exists(a));
        assert_true(ida_exists(way));
    }
}

static void new_folders_are_taken_back_as_far_as_they_are_empty(void **state) {
    size_t made = 9;
    const char *deep = in_dir(*state, "back/a//b/c/");
    assert_int_equal(ida_mkdirs(in_dir(*state, "back")), IDA_OK);
    assert_int_equal(ida_mkdirs_made(deep, &made), IDA_OK);
    ida_rmdirs(deep, made);
    assert_false(ida_exists(in_dir(*state, "back/a")));
    assert_true(ida_exists(in_dir(*state, "back"))); /* was there */
    assert_int_equal(ida_mkdirs_made(deep, &made), IDA_OK);
    put_file(in_dir(*state, "back/a/file"), "x", 1);
    ida_rmdirs(deep, made);
    assert_false(ida_exists(in_dir(*state, "back/a/b")));
    assert_true(ida_exists(in_dir(*state, "back/a/file")));
    assert_int_equal(ida_mkdirs_made(in_dir(*state, "back/a"), &made), IDA_OK);
    assert_int_equal(made, 0);
    ida_rmdirs(in_dir(*state, "back/a"), made);
    /* an empty folder that was there is left, however the path comes to it */
    const char *around = in_dir(*state, "back/new/../old/x");
    assert_int_equal(ida_mkdirs(in_dir(*state, "back/old")), IDA_OK);
    assert_int_equal(ida_mkdirs_made(around, &made), IDA_OK);
    ida_rmdirs(around, made);
    assert_false(ida_exists(in_dir(*state, "back/old/x")));
    assert_true(ida_exists(in_dir(*state, "back/old")));
    static const char *const dots[] = {"back/dot/.", "back/dot/./", "back/dot/./b", "back/./dot/././b/."};
    for (size_t i = 0; i < sizeof dots / sizeof *dots; i++) {
        assert_int_equal(ida_mkdirs_made(in_dir(*state, dots[i]), &made), IDA_OK);
        assert_true(made > 0 && ida_is_dir(in_dir(*state, dots[i])));
        ida_rmdirs(in_dir(*state, dots[i]), made);
        assert_false(ida_exists(in_dir(*state, "back/dot")));
    }
    assert_int_equal(ida_mkdirs_made(in_dir(*state, "back/old/."), &made), IDA_OK);
    assert_int_equal(made, 0);
    /* a failure on the way */
    char name[400], path[2000];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    snprintf(path, sizeof path, "%s/%s", in_dir(*state, "back/p/q"), name);
    assert_int_equal(ida_mkdirs_made(path, &made), IDA_E_IO);
    assert_int_equal(made, 0);
    assert_false(ida_exists(in_dir(*state, "back/p")));
}

static void folders_are_made_listed_in_order_and_removed_without_following_links(void **state) {
    const char *dir = in_dir(*state, "t"), *outside = in_dir(*state, "outside");
    assert_int_equal(ida_mkdirs(in_dir(*state, "t/a//b/c/")), IDA_OK);
    assert_int_equal(ida_mkdirs(in_dir(*state, "t/a/b")), IDA_OK);
    assert_int_equal(ida_mkdirs(outside), IDA_OK);
    put_file(in_dir(*state, "outside/keep"), "x", 1);
    put_file(in_dir(*state, "t/z"), "x", 1);
    put_file(in_dir(*state, "t/B"), "x", 1);
    assert_int_equal(symlink("../../outside", in_dir(*state, "t/a/link")), 0);
    char **names = NULL;
    int64_t n = 0;
    assert_int_equal(ida_list_dir(dir, &names, &n), IDA_OK);
    assert_int_equal(n, 3);
    assert_string_equal(names[0], "B");
    assert_string_equal(names[1], "a");
    assert_string_equal(names[2], "z");
    ida_names_free(names, n);
    assert_int_equal(ida_remove_tree(dir), IDA_OK);
    assert_false(ida_exists(dir));
    assert_true(ida_exists(in_dir(*state, "outside/keep")));
    assert_int_equal(ida_remove_tree(dir), IDA_OK);
    assert_int_equal(ida_list_dir(dir, &names, &n), IDA_E_IO);
    char *j = ida_path_join("a/", "b"), *k = ida_path_join("a", "b"), *l = ida_path_join("", "b");
    assert_string_equal(j, "a/b");
    assert_string_equal(k, "a/b");
    assert_string_equal(l, "b");
    ida_free(j);
    ida_free(k);
    ida_free(l);
}

static void hash_is_xxh3_of_the_whole_file(void **state) {
    const char *path = in_dir(*state, "h");
    uint64_t h = 0;
    int64_t n = -1;
    put_file(path, "", 0);
    assert_int_equal(ida_hash_file(path, &h, &n), IDA_OK);
    assert_int_equal(n, 0);
    assert_true(h == 0x2d06800538d394c2u); /* XXH3-64 of nothing, from the specification */
    char *big = calloc(1, (3 << 20) + 1);
    assert_non_null(big);
    put_file(path, big, (3 << 20) + 1);
    assert_int_equal(ida_hash_file(path, &h, &n), IDA_OK);
    assert_int_equal(n, (3 << 20) + 1);
    uint64_t other = h;
    big[3 << 20] = 1;
    put_file(path, big, (3 << 20) + 1);
    assert_int_equal(ida_hash_file(path, &h, &n), IDA_OK);
    assert_true(h != other);
    free(big);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_write_appears_only_at_commit),
        cmocka_unit_test(large_and_small_puts_keep_their_order),
        cmocka_unit_test(L36_file_size_limit_leaves_the_old_file),
        cmocka_unit_test(L36_full_disk_leaves_the_old_file),
        cmocka_unit_test(devices_and_folders_are_not_replaced),
        cmocka_unit_test(a_link_keeps_pointing_at_the_written_file),
        cmocka_unit_test(an_unwritable_folder_is_a_clear_error),
        cmocka_unit_test(a_torn_last_line_is_cut_off),
        cmocka_unit_test(a_log_line_that_does_not_fit_leaves_no_half_line),
        cmocka_unit_test(reading_refuses_what_is_not_a_small_enough_regular_file),
        cmocka_unit_test(new_folders_are_taken_back_as_far_as_they_are_empty),
        cmocka_unit_test(a_folder_taken_away_on_the_way_is_made_again),
        cmocka_unit_test(folders_are_made_listed_in_order_and_removed_without_following_links),
        cmocka_unit_test(hash_is_xxh3_of_the_whole_file),
    };
    return cmocka_run_group_tests_name("core/file", tests, scratch_setup, scratch_teardown);
}
