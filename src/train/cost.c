/* cost.c - what training a shape takes: tokens, flops, hours, memory, without anything of it being there. */
#include "data/shard.h"
#include "model/config.h"
#include "train/trainer.h"

#define T ida_cost_options
static const ida_field rows[] = {
    IDA_ROW_INT(T, "tokens", tokens, 0, 1, IDA_ANY_INT, .flags = IDA_FIELD_DERIVED,
                .help = "for --cost: tokens to train on [the recipe's]"),
    IDA_ROW_REAL(T, "tflops", tflops, 100, 1e-9, 1e9, .help = "for --cost: sustained rate, 10^12 flops a second"),
    IDA_ROW_INT(T, "micro_batch", micro_batch, 1, 1, 1048576, .help = "for --cost: sequences in memory at once"),
};
#undef T
const ida_fields ida_cost_fields = IDA_FIELDS("cost", "", ida_cost_options, rows);

ida_status ida_train_find_cost(const ida_config *cfg, const char *recipe, const ida_cost_options *o,
                               ida_train_cost *cost) {
    IDA_NEED(cfg);
    IDA_NEED(o);
    IDA_NEED(cost);
    ida_train_options t;
    ida_model_info info;
    ida_train_cost c = {.tflops = o->tflops, .micro_batch = o->micro_batch, .seq_len = cfg->max_position};
    IDA_TRY(ida_fields_check(&ida_cost_fields, o));
    IDA_TRY(ida_config_info(cfg, &info));
    ida_train_defaults(&t);
    bool known = recipe && ida_train_recipe(recipe, &t) == IDA_OK;
    IDA_FAIL_IF(!known && !o->tokens, IDA_E_ARG, "cost: there is no recipe for this shape; give tokens");
    int64_t per_step = t.batch * t.seq_len;
    if (o->tokens) t.steps = (o->tokens - 1) / per_step + 1;
    t.config = *cfg;
    t.seq_len = c.seq_len;
    t.micro_batch = o->micro_batch;
    if (t.batch % t.micro_batch) t.batch = t.micro_batch;
    IDA_TRY(ida_train_make_plan(&t, &c.plan));
    c.steps = t.steps;
    c.tokens = (double)t.steps * (double)per_step;
    c.flops = 3.0 * (double)info.flops_per_token * c.tokens; /* backward is twice the forward */
    c.hours = c.flops / (c.tflops * 1e12) / 3600;
    c.shard_bytes = c.tokens * ida_shard_width(cfg->vocab_size);
    *cost = c;
    return IDA_OK;
}
