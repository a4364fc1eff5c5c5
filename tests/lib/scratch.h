/* scratch.h - a fresh folder for a test's files, removed with everything in it. */
#ifndef TESTS_LIB_SCRATCH_H
#define TESTS_LIB_SCRATCH_H

#include <stdbool.h>
#include <stdint.h>

/* cmocka group set-up and tear-down: *state is the folder's path. */
int scratch_setup(void **state);
int scratch_teardown(void **state);
/* dir/name; valid until eight more calls. */
const char *in_dir(const char *dir, const char *name);
/* Plain write without the library under test. */
void put_file(const char *path, const void *p, int64_t n);
/* Whole file, malloc'd; *n = its size. */
char *get_file(const char *path, int64_t *n);
/* Mounts a file system of 1 MiB at dir; false when this user may not. */
bool mount_small(const char *dir);
void unmount_small(const char *dir);

#endif
