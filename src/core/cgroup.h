/* cgroup.h - what the control groups (version 2) above this process allow it. Limits nest: each level up to the root counts. */
#ifndef IDA_CORE_CGROUP_H
#define IDA_CORE_CGROUP_H

#include <stdint.h>

/* Where the kernel shows the groups, and the file that names this process's own. Other values are for tests. */
#define IDA_CGROUP_ROOT "/sys/fs/cgroup"
#define IDA_CGROUP_SELF "/proc/self/cgroup"

/* Processor quota as whole cores, rounded up, the smallest of all levels; 0 = none. */
int64_t ida_cgroup_cores(const char *root, const char *self);
/* Bytes that may still be taken: the least over all levels of limit - usage + page cache the kernel would give back
 * (inactive_file), at least 0; -1 = no limit. */
int64_t ida_cgroup_memory(const char *root, const char *self);

#endif
