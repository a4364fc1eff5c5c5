/* thrift.h - reads the Thrift compact protocol from a byte range: what Parquet's footer and page headers need, no more.
 * Failure is sticky: after the first malformed or missing byte every getter gives 0, `bad` stays set, and loops end. */
#ifndef IDA_DATA_THRIFT_H
#define IDA_DATA_THRIFT_H

#include <stdbool.h>
#include <stdint.h>

enum { IDA_THRIFT_TRUE = 1, IDA_THRIFT_FALSE = 2, IDA_THRIFT_I8 = 3, IDA_THRIFT_I16 = 4, IDA_THRIFT_I32 = 5, IDA_THRIFT_I64 = 6,
       IDA_THRIFT_DOUBLE = 7, IDA_THRIFT_BINARY = 8, IDA_THRIFT_LIST = 9, IDA_THRIFT_SET = 10, IDA_THRIFT_MAP = 11,
       IDA_THRIFT_STRUCT = 12, IDA_THRIFT_UUID = 13 };

typedef struct ida_thrift { const uint8_t *p, *end; bool bad; } ida_thrift;

/* The next field of a struct; *id holds the last one's number (0 at first). false at the struct's end. The caller then reads or
 * skips exactly one value of *type. */
bool ida_thrift_field(ida_thrift *t, int16_t *id, int *type);
void ida_thrift_skip(ida_thrift *t, int type);
/* Values of a field; a field of another type is bad. */
int64_t ida_thrift_int(ida_thrift *t, int type);     /* i8 to i64 */
bool ida_thrift_bool(ida_thrift *t, int type);       /* the type is the value */
int64_t ida_thrift_binary(ida_thrift *t, int type, const uint8_t **p);
/* Length of a list whose elements are of type `want`; never more than the bytes that are left. */
int64_t ida_thrift_list(ida_thrift *t, int type, int want);

#endif
