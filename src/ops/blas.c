/* blas.c - see blas.h. Not here: the products (cpu/linear.c). */
#include "ops/blas.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "core/threads.h"

ida_status ida_blas_has_memory(void) {
    static atomic_bool seen;
    if (atomic_load_explicit(&seen, memory_order_relaxed)) return IDA_OK;
    const size_t bytes = (size_t)ida_workers() << 27;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    IDA_FAIL_IF(p == MAP_FAILED, IDA_E_NOMEM,
                "no %zu MiB of address space for OpenBLAS on %d threads: use fewer threads or raise the limit (ulimit -v)",
                bytes >> 20, ida_workers());
    munmap(p, bytes);
    atomic_store_explicit(&seen, true, memory_order_relaxed);
    return IDA_OK;
}
