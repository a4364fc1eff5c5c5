/* cpu.h - which vector instruction set the CPU kernels run with. Checked once (cpuid and OS support); IDA_ISA lowers it. */
#ifndef IDA_CORE_CPU_H
#define IDA_CORE_CPU_H

typedef enum ida_isa { IDA_ISA_BASE = 0, IDA_ISA_AVX2 = 1, IDA_ISA_AVX512 = 2, IDA_N_ISA = 3 } ida_isa;

ida_isa ida_cpu_best(void);          /* what the machine has, IDA_ISA not considered */
ida_isa ida_cpu_isa(void);           /* what is used; an unknown or too high IDA_ISA is logged once and ignored */
const char *ida_cpu_isa_name(ida_isa isa);

#endif
