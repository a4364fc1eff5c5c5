/* backend_stub.c - shared objects that are no CUDA backend, each wrong in one way (STUB), and one that is right but for the GPU
 * (test_backend.c). */
#include <stdio.h>

#include "ops/backend.h"

#define NO_SYMBOL 0
#define REFUSES 1
#define OTHER_ABI 2
#define OTHER_OPS 3
#define WORKS 4

#if STUB != NO_SYMBOL
_Static_assert(STUB >= REFUSES && STUB <= WORKS, "no such stub");
static ida_backend_host host;

static ida_status open_stub(int ordinal, ida_dtype dtype, const ida_device **out) {
    enum { MOST = 8 };
    static char names[MOST][32];
    static ida_device devices[MOST];
    static int opened;
    if (ordinal == 5 || opened == MOST)
        return host.fail(IDA_E_ARG, __FILE__, __LINE__, "there is no cuda:5, says 100% of the stub");
    host.log("opening");
    snprintf(names[opened], sizeof names[opened], "stub %d cuda:%d", opened, ordinal);
    devices[opened] = (ida_device){.name = names[opened], .act_type = (ida_type)dtype};
    *out = &devices[opened++];
    return IDA_OK;
}

static ida_status describe(char *json, size_t size) {
    snprintf(json, size, "[{\"name\": \"stub\", \"sm\": 90, \"memory_bytes\": 1024}]");
    return IDA_OK;
}

__attribute__((visibility("default"))) ida_backend_entry_fn ida_cuda_backend;
const ida_backend *ida_cuda_backend(int abi, const ida_backend_host *from) {
    static ida_backend backend = {
        .abi = STUB == OTHER_ABI ? IDA_BACKEND_ABI + 1 : IDA_BACKEND_ABI, .open = open_stub, .describe = describe};
    backend.n_ops = (int64_t)(sizeof(ida_ops) / sizeof(void *)) + (STUB == OTHER_OPS);
    host = *from;
    return STUB == REFUSES || abi != IDA_BACKEND_ABI ? NULL : &backend;
}
#else
extern int ida_backend_stub;
int ida_backend_stub;
#endif
