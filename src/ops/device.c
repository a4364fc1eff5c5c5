/* device.c - the CPU device of each instruction set, by the machine's leave. */
#include "ops/ops.h"

#include "ops/cpu/cpu_ops.h"

const ida_device *ida_cpu_device_for(ida_isa isa) {
    if (isa > ida_cpu_best()) return NULL;
    switch (isa) {
    case IDA_ISA_BASE: return ida_cpu_base_device();
#if defined(__x86_64__)
    case IDA_ISA_AVX2: return ida_cpu_avx2_device();
    case IDA_ISA_AVX512: return ida_cpu_avx512_device();
#else
    case IDA_ISA_AVX2:
    case IDA_ISA_AVX512:
#endif
    case IDA_N_ISA: break;
    }
    return NULL;
}

const ida_device *ida_cpu_device(void) { return ida_cpu_device_for(ida_cpu_isa()); }
