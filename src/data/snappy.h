/* snappy.h - unpacks one raw Snappy block (no framing), as Parquet pages hold it. */
#ifndef IDA_DATA_SNAPPY_H
#define IDA_DATA_SNAPPY_H

#include <stdbool.h>
#include <stdint.h>

/* true when in[0..n) is a well-formed block of exactly out_n bytes, now in out. Nothing outside the two ranges is touched. */
bool ida_snappy_unpack(const uint8_t *in, int64_t n, uint8_t *out, int64_t out_n);

#endif
