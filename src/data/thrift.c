/* thrift.c - see thrift.h. */
#include "data/thrift.h"

enum { MAX_DEPTH = 32 };

static uint8_t byte(ida_thrift *t) {
    if (t->bad || t->p == t->end) {
        t->bad = true;
        return 0;
    }
    return *t->p++;
}

static uint64_t varint(ida_thrift *t) {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t b = byte(t);
        v |= (uint64_t)(b & 127) << shift;
        if (b < 128) return t->bad ? 0 : v;
    }
    t->bad = true;
    return 0;
}

static int64_t zigzag(ida_thrift *t) {
    uint64_t v = varint(t);
    return (int64_t)(v >> 1 ^ (0 - (v & 1)));
}

static void pass(ida_thrift *t, uint64_t n) {
    if (t->bad || n > (uint64_t)(t->end - t->p)) t->bad = true;
    else t->p += n;
}

bool ida_thrift_field(ida_thrift *t, int16_t *id, int *type) {
    uint8_t b = byte(t);
    if (t->bad || b == 0) return false;
    int64_t next = b >> 4 ? *id + (b >> 4) : zigzag(t);
    *type = b & 15;
    if (next < INT16_MIN || next > INT16_MAX || *type > IDA_THRIFT_UUID) t->bad = true;
    if (t->bad) return false;
    *id = (int16_t)next;
    return true;
}

static void skip(ida_thrift *t, int type, bool element, int depth);

static void skip_elements(ida_thrift *t, uint64_t n, int a, int b, int depth) {
    for (uint64_t i = 0; i < n && !t->bad; i++) {
        skip(t, a, true, depth);
        if (b) skip(t, b, true, depth);
    }
}

/* A bool is a byte inside a list, and nothing but its type as a field. */
static void skip(ida_thrift *t, int type, bool element, int depth) {
    if (depth > MAX_DEPTH) t->bad = true;
    if (t->bad) return;
    int16_t id = 0;
    int inner;
    uint64_t n;
    switch (type) {
    case IDA_THRIFT_TRUE:
    case IDA_THRIFT_FALSE: pass(t, element); break;
    case IDA_THRIFT_I8: pass(t, 1); break;
    case IDA_THRIFT_I16:
    case IDA_THRIFT_I32:
    case IDA_THRIFT_I64: varint(t); break;
    case IDA_THRIFT_DOUBLE: pass(t, 8); break;
    case IDA_THRIFT_UUID: pass(t, 16); break;
    case IDA_THRIFT_BINARY: pass(t, varint(t)); break;
    case IDA_THRIFT_LIST:
    case IDA_THRIFT_SET:
        inner = byte(t);
        n = inner >> 4 == 15 ? varint(t) : (uint64_t)(inner >> 4);
        skip_elements(t, n, inner & 15, 0, depth + 1);
        break;
    case IDA_THRIFT_MAP:
        n = varint(t);
        inner = n ? byte(t) : 0;
        if (n && !(inner & 15)) t->bad = true;
        skip_elements(t, n, inner >> 4, inner & 15, depth + 1);
        break;
    case IDA_THRIFT_STRUCT:
        while (ida_thrift_field(t, &id, &inner)) skip(t, inner, false, depth + 1);
        break;
    default: t->bad = true;
    }
}

void ida_thrift_skip(ida_thrift *t, int type) { skip(t, type, false, 0); }

int64_t ida_thrift_int(ida_thrift *t, int type) {
    if (type == IDA_THRIFT_I8) return (int8_t)byte(t);
    if (type < IDA_THRIFT_I16 || type > IDA_THRIFT_I64) t->bad = true;
    return t->bad ? 0 : zigzag(t);
}

bool ida_thrift_bool(ida_thrift *t, int type) {
    if (type != IDA_THRIFT_TRUE && type != IDA_THRIFT_FALSE) t->bad = true;
    return !t->bad && type == IDA_THRIFT_TRUE;
}

int64_t ida_thrift_binary(ida_thrift *t, int type, const uint8_t **p) {
    if (type != IDA_THRIFT_BINARY) t->bad = true;
    uint64_t n = t->bad ? 0 : varint(t);
    *p = t->p;
    pass(t, n);
    return t->bad ? 0 : (int64_t)n;
}

int64_t ida_thrift_list(ida_thrift *t, int type, int want) {
    if (type != IDA_THRIFT_LIST) t->bad = true;
    int head = t->bad ? 0 : byte(t);
    uint64_t n = head >> 4 == 15 ? varint(t) : (uint64_t)(head >> 4);
    if ((n && (head & 15) != want) || n > (uint64_t)(t->end - t->p)) t->bad = true;
    return t->bad ? 0 : (int64_t)n;
}
