/* line.h - "prefix: message" in one line, for the two homes of ida_fail_prefix: status.c, and host.c inside the CUDA backend. */
#ifndef IDA_CORE_LINE_H
#define IDA_CORE_LINE_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"

/* Cut, not refused, when too long. The arguments may point into last. */
static inline void ida_line_prefix(char line[IDA_LINE_BYTES], const char *last, const char *fmt, va_list ap) {
    if (vsnprintf(line, IDA_LINE_BYTES, fmt, ap) < 0) line[0] = '\0';
    size_t used = strlen(line);
    const char *parts[] = {": ", last};
    for (int i = 0; i < 2; i++) {
        size_t part = strlen(parts[i]);
        if (part > IDA_LINE_BYTES - 1 - used) part = IDA_LINE_BYTES - 1 - used;
        memcpy(line + used, parts[i], part);
        used += part;
    }
    line[used] = '\0';
}

#endif
