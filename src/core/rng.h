/* rng.h - counter-based random numbers (Philox4x32-10 from Random123): no state to save, the same on any machine and
 * thread count. key = seed, counter = (stream, index): every draw is a pure function of the three. */
#ifndef IDA_CORE_RNG_H
#define IDA_CORE_RNG_H

#include <stdint.h>

/* Streams in use. A new use takes a new number. Parameter tensors use IDA_STREAM_INIT + tensor index. */
enum { IDA_STREAM_ORDER = 1, IDA_STREAM_SAMPLE = 2, IDA_STREAM_STUDY = 3, IDA_STREAM_TEST = 4, IDA_STREAM_INIT = 1 << 20 };

void ida_philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]);
double ida_uniform(uint64_t seed, uint64_t stream, uint64_t index);        /* [0, 1), 53 bits */
double ida_normal(uint64_t seed, uint64_t stream, uint64_t index);         /* mean 0, variance 1 (Box-Muller) */
/* Keyed pseudo-random permutation of [0, n): position i -> element. O(1), no memory; n >= 1, 0 <= i < n. */
uint64_t ida_permute(uint64_t seed, uint64_t stream, uint64_t n, uint64_t i);

#endif
