/* blocks.h - from a configuration to the layers of a model: kind, options, sizes and place in the state of each residual part.
 * Not here: what a kind is (layers/layer.h). Invariant: a pure function of the config. */
#ifndef IDA_MODEL_BLOCKS_H
#define IDA_MODEL_BLOCKS_H

#include "idattn/config.h"
#include "layers/layer.h"

typedef struct ida_layers {
    ida_backbone backbone;
    int64_t n;        /* residual parts in the order they run: mixer, SwiGLU, mixer, SwiGLU, ... */
    int64_t per_block; /* of them */
    ida_layer *at;    /* [n] */
    int64_t stride;   /* elements of the fixed state of one sequence, all layers */
    unsigned caps;    /* of all mixers, or-ed */
} ida_layers;

/* The config's fields must be in range. IDA_E_NOMEM. */
ida_status ida_layers_build(const ida_config *c, ida_layers *out);
void ida_layers_free(ida_layers *l);
/* Mixer of one block, whose kind is known, with its options, not placed. */
ida_layer ida_layers_mixer(const ida_config *c, int64_t block);
/* Every block's kind is known and its options go together. IDA_E_ARG names the block. */
ida_status ida_layers_check(const ida_config *c);
static inline bool ida_layers_any(const ida_layers *l, unsigned cap) { return (l->caps & cap) != 0; }
static inline bool ida_layer_is(const ida_layer *l, unsigned cap) { return (l->kind->caps & cap) != 0; }

/* Buffers start at multiples of 16 elements (64 bytes of float). */
static inline int64_t ida_round16(int64_t n) { return (n + 15) / 16 * 16; }

#endif
