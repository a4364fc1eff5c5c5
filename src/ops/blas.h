/* blas.h - what must hold before OpenBLAS is called. */
#ifndef IDA_OPS_BLAS_H
#define IDA_OPS_BLAS_H

#include "core/status.h"

/* OpenBLAS takes a buffer of up to 128 MiB per thread at its first call, and tries for ever when it cannot have one. So the
 * address space is asked for first, once. */
ida_status ida_blas_has_memory(void);

#endif
