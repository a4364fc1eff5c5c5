/* bf16.h - bfloat16 as a storage type: round to nearest even, NaN stays NaN. */
#ifndef IDA_CORE_BF16_H
#define IDA_CORE_BF16_H

#include <stdint.h>
#include <string.h>

static inline float ida_bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint16_t ida_f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

#endif
