/* test_cgroup.c - limits of nested control groups, from a tree written by the test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/cgroup.h"
#include "core/file.h"
#include "lib/scratch.h"

static void put(const char *dir, const char *name, const char *text) {
    char path[1400];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(ida_mkdirs(dir), IDA_OK);
    assert_int_equal(ida_write_file(path, text, strlen(text)), IDA_OK);
}

static void the_tightest_level_counts_and_usage_is_taken_off(void **state) {
    char root[1024], inner[1100], leaf[1200], self[1100];
    snprintf(root, sizeof root, "%s", in_dir(*state, "cgroup"));
    snprintf(inner, sizeof inner, "%s/job", root);
    snprintf(leaf, sizeof leaf, "%s/job/step", root);
    put(leaf, "memory.max", "max\n");
    put(leaf, "cpu.max", "max 100000\n");
    put(root, "self", "1:name=x:/elsewhere\n0::/job/step\n");
    snprintf(self, sizeof self, "%s/self", root);
    assert_int_equal(ida_cgroup_memory(root, self), -1);
    assert_int_equal(ida_cgroup_cores(root, self), 0);

    put(inner, "memory.max", "1000000\n");
    assert_int_equal(ida_cgroup_memory(root, self), 1000000);
    put(inner, "memory.current", "700000\n");
    assert_int_equal(ida_cgroup_memory(root, self), 300000);
    put(inner, "memory.stat", "anon 5\ninactive_file 200000\nactive_file 9\n");
    assert_int_equal(ida_cgroup_memory(root, self), 500000);
    put(leaf, "memory.max", "400000\n");
    assert_int_equal(ida_cgroup_memory(root, self), 400000);
    put(leaf, "memory.current", "450000\n"); /* over it already */
    assert_int_equal(ida_cgroup_memory(root, self), 0);

    put(inner, "cpu.max", "250000 100000\n");
    assert_int_equal(ida_cgroup_cores(root, self), 3);
    put(root, "cpu.max", "100000 100000\n");
    assert_int_equal(ida_cgroup_cores(root, self), 1);

    put(root, "self", "0::/../../job/step\n"); /* outside of what is mounted: only the root is known */
    assert_int_equal(ida_cgroup_memory(root, self), -1);
    assert_int_equal(ida_cgroup_memory(root, in_dir(*state, "absent")), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_tightest_level_counts_and_usage_is_taken_off)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
