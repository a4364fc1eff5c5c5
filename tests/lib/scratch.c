/* scratch.c - temporary folders and plain file access of the tests, independent of the code under test. */
#include "lib/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/file.h"

int scratch_setup(void **state) {
    const char *base = getenv("TMPDIR");
    if (!base || !*base) base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"; /* hundreds of fsyncs need no disk */
    char *dir = NULL;
    if (asprintf(&dir, "%s/idattn-test-XXXXXX", base) < 0) return -1;
    if (!mkdtemp(dir)) return -1;
    *state = dir;
    return 0;
}

static char mounted[1024];

int scratch_teardown(void **state) {
    if (*mounted) unmount_small(mounted); /* a test that failed half-way */
    int bad = ida_remove_tree(*state) != IDA_OK;
    free(*state);
    return bad;
}

const char *in_dir(const char *dir, const char *name) {
    static char paths[8][1024];
    static int next;
    char *p = paths[next++ % 8];
    snprintf(p, sizeof paths[0], "%s/%s", dir, name);
    return p;
}

void put_file(const char *path, const void *p, int64_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, (size_t)n, f), n);
    assert_int_equal(fclose(f), 0);
}

char *get_file(const char *path, int64_t *n) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char *p = malloc((size_t)size + 1);
    assert_non_null(p);
    assert_int_equal(fread(p, 1, (size_t)size, f), size);
    fclose(f);
    p[size] = '\0';
    *n = size;
    return p;
}

bool mount_small(const char *dir) {
    if (geteuid() != 0 || mount("none", dir, "tmpfs", 0, "size=1m") != 0) return false;
    snprintf(mounted, sizeof mounted, "%s", dir);
    return true;
}

void unmount_small(const char *dir) {
    umount2(dir, MNT_DETACH);
    *mounted = '\0';
}
