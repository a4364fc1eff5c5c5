/* cpu.c - instruction set detection. A set counts only when the processor has it and the system saves its registers. */
#include "core/cpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static ida_isa best, used;
static char complaint[128]; /* logged once, outside of pthread_once: the log function may call the library */
static atomic_bool complained;

static ida_isa detect(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    unsigned a = 0, b = 0, c = 0, d = 0;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !f16c) return IDA_ISA_BASE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return IDA_ISA_AVX512;
    return IDA_ISA_AVX2;
#else
    return IDA_ISA_BASE;
#endif
}

static void choose(void) {
    best = used = detect();
    const char *want = getenv("IDA_ISA");
    if (!want || !*want) return;
    for (int i = 0; i < IDA_N_ISA; i++) {
        if (strcmp(want, ida_cpu_isa_name((ida_isa)i)) != 0) continue;
        if (i <= (int)best) used = (ida_isa)i;
        else snprintf(complaint, sizeof complaint, "IDA_ISA=%.20s is ignored: this machine has %s at most", want,
                      ida_cpu_isa_name(best));
        return;
    }
    snprintf(complaint, sizeof complaint, "IDA_ISA=%.40s is ignored: known are base, avx2, avx512", want);
}

static void ensure(void) {
    pthread_once(&once, choose);
    if (*complaint && !atomic_exchange(&complained, true)) ida_log("%s", complaint);
}

ida_isa ida_cpu_best(void) {
    ensure();
    return best;
}

ida_isa ida_cpu_isa(void) {
    ensure();
    return used;
}

const char *ida_cpu_isa_name(ida_isa isa) {
    switch (isa) {
    case IDA_ISA_BASE: return "base";
    case IDA_ISA_AVX2: return "avx2";
    case IDA_ISA_AVX512: return "avx512";
    case IDA_N_ISA: break;
    }
    return "unknown";
}

const char *ida_isa_name(void) { return ida_cpu_isa_name(ida_cpu_isa()); }
