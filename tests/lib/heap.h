/* heap.h - exact bytes in use on the heap, for tests of what is taken and of what grows. */
#ifndef TEST_HEAP_H
#define TEST_HEAP_H

#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* AddressSanitizer has its own allocator; mallinfo2 then tells nothing. */
extern size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

/* glibc counts a freed chunk as used while a thread's cache holds it, so mallinfo2 drifts a little. First thing in main: starts
 * the program again without those caches; then the figure is exact. */
static inline void heap_without_caches(char **argv) {
    if (__sanitizer_get_current_allocated_bytes || getenv("GLIBC_TUNABLES")) return;
    setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1);
    execv("/proc/self/exe", argv);
}

static inline int64_t heap_in_use(void) {
    if (__sanitizer_get_current_allocated_bytes) return (int64_t)__sanitizer_get_current_allocated_bytes();
    struct mallinfo2 i = mallinfo2();
    return (int64_t)(i.uordblks + i.hblkhd);
}

#endif
