/* cgroup.c - reads control groups of version 2. Those of version 1 have no limit here. Nothing is kept: limits may change. */
#include "core/cgroup.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* A limit of one level, -1 = none there. */
typedef int64_t level_fn(const char *dir);

static FILE *open_in(const char *dir, const char *file) {
    char path[PATH_MAX + 128];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    return fopen(path, "re");
}

/* First number after `key`, -1 when absent ("max" is absent too). */
static int64_t number_in(const char *dir, const char *file, const char *key) {
    FILE *f = open_in(dir, file);
    if (!f) return -1;
    char line[256];
    long long value = -1;
    size_t n = strlen(key);
    while (value < 0 && fgets(line, sizeof line, f))
        if (strncmp(line, key, n) == 0 && sscanf(line + n, "%lld", &value) != 1) value = -1;
    fclose(f);
    return value < 0 ? -1 : value;
}

static int64_t cores_of(const char *dir) {
    long long quota = -1, period = 0;
    FILE *f = open_in(dir, "cpu.max");
    if (!f) return -1;
    if (fscanf(f, "%lld %lld", &quota, &period) != 2) quota = -1;
    fclose(f);
    return quota > 0 && period > 0 ? (quota - 1) / period + 1 : -1;
}

static int64_t memory_of(const char *dir) {
    int64_t limit = number_in(dir, "memory.max", ""), used = number_in(dir, "memory.current", "");
    if (limit < 0) return -1;
    int64_t cache = number_in(dir, "memory.stat", "inactive_file ");
    if (used < 0) used = 0;
    if (cache > 0) used = cache < used ? used - cache : 0;
    return used < limit ? limit - used : 0;
}

/* The least limit from the process's own group up to the root. A group outside the mounted tree ("..") has only the root. */
static int64_t least(const char *root, const char *self, level_fn *level) {
    char line[PATH_MAX], dir[2 * PATH_MAX];
    size_t n_root = strlen(root);
    snprintf(dir, sizeof dir, "%s", root);
    FILE *f = fopen(self, "re");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "0::/", 4) != 0 || strstr(line, "..")) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(dir, sizeof dir, "%s%s", root, line + 3);
    }
    if (f) fclose(f);
    int64_t best = -1;
    while (strlen(dir) >= n_root) {
        int64_t x = level(dir);
        if (x >= 0 && (best < 0 || x < best)) best = x;
        char *slash = strrchr(dir, '/');
        if (!slash) break;
        *slash = '\0';
    }
    return best;
}

int64_t ida_cgroup_cores(const char *root, const char *self) {
    int64_t n = least(root, self, cores_of);
    return n > 0 ? n : 0;
}

int64_t ida_cgroup_memory(const char *root, const char *self) { return least(root, self, memory_of); }
