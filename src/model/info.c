/* info.c - exact sizes of a configuration, from the parameter table alone: no weight is allocated.
 *
 * flops_per_token counts a multiply and an add as two, in the forward pass at sequence length T = max_position, per token:
 *   projections, SwiGLU, lm_head   2 per weight (the embedding look-up is free; tied, it counts once, as lm_head)
 *   short convolutions             2 per weight
 *   softmax                        2 d (T + 1): scores and values against (T + 1)/2 keys on average
 *   interdomain, single-query      the chunk form of docs/method.md section 4 with C = 64, W = R + D, per query head
 *                                  2CW + 8CM + 4MW + 8M^2, and 4MW per group for the state
 *   s4d, dual-linear               2CW + 8MW per head (Toeplitz product in the chunk, state out, state in)
 * Element-wise work (norms, RoPE, feature map, activations) is left out. */
#include "model/config.h"
#include "model/model.h"

ida_status ida_config_count(const ida_config *cfg, ida_model_info *info) {
    ida_param_table t;
    ida_layers all;
    IDA_TRY(ida_param_table_build(cfg, &t));
    ida_model_info r = {.parameters = t.numel};
    int64_t weights = 0;
    for (int64_t i = 0; i < t.n; i++) {
        const ida_param *p = &t.params[i];
        bool conv = p->ndim == 3 && p->shape[2] == 4 && p->group == IDA_GROUP_VECTOR;
        bool lookup = i == 0 && !cfg->tie_embeddings;
        if ((p->group == IDA_GROUP_MATRIX && !lookup) || conv) weights += p->numel;
    }
    ida_param_table_free(&t);
    r.flops_per_token = 2 * weights;
    IDA_TRY(ida_layers_build(cfg, &all));
    r.state_bytes = all.stride * (int64_t)sizeof(float);
    for (int64_t i = 0; i < all.n; i++) {
        const ida_layer *l = &all.at[i];
        if (l->kind->flops) r.flops_per_token += l->kind->flops(l, &all.backbone);
        if (ida_layer_is(l, IDA_LAYER_CACHE)) r.state_bytes_per_token += (ida_dim(l, 'k') + ida_dim(l, 'v')) * (int64_t)sizeof(float);
    }
    ida_layers_free(&all);
    *info = r;
    return IDA_OK;
}

ida_status ida_config_info(const ida_config *cfg, ida_model_info *info) {
    IDA_NEED(cfg);
    IDA_NEED(info);
    IDA_TRY(ida_config_check(cfg));
    return ida_config_count(cfg, info);
}
