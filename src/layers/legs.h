/* legs.h - the frequencies of HiPPO-LegS (docs/method.md, basis s4d-legs). */
#ifndef IDA_LAYERS_LEGS_H
#define IDA_LAYERS_LEGS_H

#include <stdint.h>

/* out[j], j < m, ascending: the positive imaginary parts of the eigenvalues of the normal part of HiPPO-LegS of order 2m
 * (their real part is -1/2). */
void ida_legs_frequencies(int64_t m, double *out);

#endif
