/* params.c - the parameter table: name, shape, decay group and place of every tensor, and the pointers into a block laid out by
 * it. Not here: values (init.c). Invariant: the table is a pure function of the config; its order is the storage order of every
 * file and the numbering of the random streams, and the rows of a kind stand in it as they do in the kind. */
#include "model/model.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"

const char *ida_group_name(ida_group g) {
    switch (g) {
    case IDA_GROUP_MATRIX: return "matrix";
    case IDA_GROUP_VECTOR: return "vector";
    case IDA_GROUP_SSM: break;
    }
    return "ssm";
}

/* The next tensor; `name` was made by the caller. */
static ida_param *add(ida_param_table *t, int ndim, const int64_t *shape, ida_group group, ida_start start) {
    ida_param *p = &t->params[t->n++];
    memset(p, 0, sizeof *p);
    p->ndim = ndim;
    p->numel = 1;
    for (int i = 0; i < ndim; i++) p->numel *= p->shape[i] = shape[i];
    p->offset = t->block;
    p->group = group;
    p->layer = p->part = p->slot = -1;
    p->start = start;
    t->numel += p->numel;
    t->block += ida_round16(p->numel);
    return p;
}

static void add_outer(ida_param_table *t, const char *name, int ndim, const int64_t *shape, ida_group group, ida_start start) {
    snprintf(add(t, ndim, shape, group, start)->name, sizeof t->params->name, "%s", name);
}

/* Of residual part i: its norm's gain, then the rows of its kind. */
static void add_layer(ida_param_table *t, const ida_layers *all, int64_t i) {
    const ida_layer *l = &all->at[i];
    for (int k = -1; k < l->kind->n_tensors; k++) {
        const ida_tensor_row *r = k < 0 ? NULL : &l->kind->tensors[k];
        int64_t shape[4] = {all->backbone.d_model};
        int ndim = r ? (int)strlen(r->shape) : 1;
        if (r && !ida_row_on(l, r->when)) continue;
        for (int j = 0; r && j < ndim; j++) shape[j] = ida_dim(l, r->shape[j]);
        ida_param *p = r ? add(t, ndim, shape, r->group, r->start(l, &all->backbone))
                         : add(t, ndim, shape, IDA_GROUP_VECTOR, ida_start_one(l, &all->backbone));
        snprintf(p->name, sizeof p->name, "model.layers.%d.%s%s", l->block, r ? l->kind->prefix : "", r ? r->name : l->kind->norm);
        p->layer = l->block;
        p->part = (int)i;
        p->slot = r ? r->slot : -1;
    }
}

static ida_status build(const ida_config *c, const ida_layers *all, ida_param_table *t) {
    const ida_start normal = {.law = IDA_LAW_NORMAL, .a = c->init_std}, one = {.law = IDA_LAW_CONST, .a = 1};
    const int64_t table[2] = {c->vocab_size, c->d_model};
    ida_param_table r = {0};
    int64_t most = 3;
    for (int64_t i = 0; i < all->n; i++) most += 1 + all->at[i].kind->n_tensors;
    IDA_TRY(IDA_ALLOC(r.params, most, "parameter table"));
    add_outer(&r, "model.embed_tokens.weight", 2, table, IDA_GROUP_MATRIX, normal);
    for (int64_t i = 0; i < all->n; i++) add_layer(&r, all, i);
    r.norm = r.n;
    add_outer(&r, "model.norm.weight", 1, &c->d_model, IDA_GROUP_VECTOR, one);
    if (!c->tie_embeddings) {
        r.lm_head = r.n;
        add_outer(&r, "lm_head.weight", 2, table, IDA_GROUP_MATRIX, normal);
    }
    *t = r;
    return IDA_OK;
}

ida_status ida_param_table_build(const ida_config *c, ida_param_table *t) {
    ida_layers all;
    IDA_TRY(ida_layers_build(c, &all));
    const ida_status st = build(c, &all, t);
    ida_layers_free(&all);
    return st;
}

void ida_param_table_free(ida_param_table *t) {
    ida_free(t->params);
    *t = (ida_param_table){0};
}

const ida_param *ida_param_find(const ida_param_table *t, const char *name) {
    for (int64_t i = 0; i < t->n; i++)
        if (strcmp(t->params[i].name, name) == 0) return &t->params[i];
    return NULL;
}

static ida_matrix matrix_of(const ida_param *p, const ida_device *dev, const ida_act *matrices) {
    return ida_matrix_of(dev, ida_act_at(dev, matrices, p->offset), p->shape[0], p->shape[1]);
}

void ida_weights_bind(const ida_param_table *t, const ida_device *dev, real *block, ida_act *matrices, ida_weights_at *w) {
    for (int64_t i = 0; i < t->n; i++) {
        const ida_param *p = &t->params[i];
        if (p->part < 0) continue;
        ida_part_weights *part = &w->parts[p->part];
        if (p->slot < 0) *part = (ida_part_weights){.gain = block + p->offset}; /* the first of its part */
        else if (p->group == IDA_GROUP_MATRIX) part->w[p->slot].matrix = matrix_of(p, dev, matrices);
        else part->w[p->slot].vector = block + p->offset;
    }
    w->embed = matrix_of(&t->params[0], dev, matrices);
    w->norm = block + t->params[t->norm].offset;
    w->lm_head = matrix_of(&t->params[t->lm_head], dev, matrices);
}

void ida_reals_bind(const ida_param_table *t, real *block, ida_reals_at *r) {
    for (int64_t i = 0; i < t->n; i++) {
        const ida_param *p = &t->params[i];
        if (p->part < 0) continue;
        if (p->slot < 0) r->parts[p->part] = (ida_part_reals){.gain = block + p->offset};
        else r->parts[p->part].w[p->slot] = block + p->offset;
    }
    r->embed = block;
    r->norm = block + t->params[t->norm].offset;
    r->lm_head = block + t->params[t->lm_head].offset;
}
