/* options.c - the calls of idattn/options.h: every group of options, by name. Not here: the rows, which stand where
 * they are used. */
#include "idattn/options.h"

#include <string.h>

#include "api/groups.h"
#include "bench/bench.h"
#include "core/json.h"
#include "core/place.h"
#include "core/threads.h"
#include "data/dataset.h"
#include "data/pack.h"
#include "data/word_count.h"
#include "eval/eval.h"
#include "infer/sampler.h"
#include "layers/call.h"
#include "model/config.h"
#include "train/trainer.h"

static const ida_fields *const groups[] = {
    &ida_config_fields, &ida_shape_fields,  &ida_bpe_fields,   &ida_pack_fields,   &ida_inspect_fields,
    &ida_train_fields,  &ida_recipe_fields, &ida_cost_fields,  &ida_sample_fields, &ida_ppl_fields,
    &ida_length_fields, &ida_mixer_fields,  &ida_place_fields, &ida_process_fields};

const ida_fields *ida_group_at(int64_t i) {
    return i < IDA_COUNT(groups) ? groups[i] : ida_bench_fields(i - IDA_COUNT(groups));
}

static ida_status find(const char *group, const ida_fields **t) {
    ida_buf list = {0};
    ida_status st = IDA_OK;
    IDA_NEED(group);
    for (int64_t i = 0; (*t = ida_group_at(i)); i++)
        if (strcmp((*t)->name, group) == 0) return IDA_OK;
    for (int64_t i = 0; ida_group_at(i) && !st; i++)
        st = ida_buf_addf(&list, "%s%s", i ? ", " : "", ida_group_at(i)->name);
    if (!st)
        st = ida_fail(IDA_E_ARG, __FILE__, __LINE__, "group of options \"%.40s\" is not known; known: %s", group,
                      list.data);
    ida_buf_free(&list);
    return st;
}

/* The group of a struct that a caller holds. */
static ida_status find_struct(const char *group, const void *options, size_t bytes, const ida_fields **t) {
    IDA_NEED(options);
    IDA_TRY(find(group, t));
    IDA_FAIL_IF(bytes != (*t)->bytes, IDA_E_ARG,
                "options of group %s take %zu bytes in this library, %zu in the caller: header and library are not of "
                "one version",
                group, (*t)->bytes, bytes);
    return IDA_OK;
}

static ida_status describe_all(json_t **out) {
    json_t *list = json_array(), *one = NULL;
    ida_status st = list ? IDA_OK : ida_fail(IDA_E_NOMEM, __FILE__, __LINE__, "no memory for the groups of options");
    for (int64_t i = 0; ida_group_at(i) && !st; i++) {
        st = ida_fields_describe(ida_group_at(i), &one);
        if (!st && json_array_append_new(list, one))
            st = ida_fail(IDA_E_NOMEM, __FILE__, __LINE__, "no memory for a group");
    }
    if (st) json_decref(list);
    else *out = list;
    return st;
}

static ida_status dump(json_t *j, char **json) {
    *json = ida_json_dump_exact(j);
    json_decref(j);
    IDA_FAIL_IF(!*json, IDA_E_NOMEM, "no memory for options as JSON");
    return IDA_OK;
}

ida_status ida_options_json(const char *group, char **json) {
    const ida_fields *t;
    json_t *j = NULL;
    IDA_NEED(json);
    *json = NULL;
    if (!group) IDA_TRY(describe_all(&j));
    else IDA_TRY(find(group, &t));
    if (group) IDA_TRY(ida_fields_describe(t, &j));
    return dump(j, json);
}

ida_status ida_options_defaults(const char *group, void *options, size_t bytes) {
    const ida_fields *t;
    IDA_TRY(find_struct(group, options, bytes, &t));
    if (t == &ida_train_fields) ida_train_defaults(options); /* with the shape inside */
    else ida_fields_defaults(t, options);
    return IDA_OK;
}

ida_status ida_options_set(const char *group, void *options, size_t bytes, const char *key, const char *value) {
    const ida_fields *t;
    IDA_NEED(key);
    IDA_NEED(value);
    IDA_TRY(find_struct(group, options, bytes, &t));
    if (t == &ida_config_fields) return ida_config_set(options, key, value);
    return ida_fields_set(t, options, key, value, NULL);
}

ida_status ida_options_set_list(const char *group, void *options, size_t bytes, const char *key,
                                const char *const *values, int64_t n) {
    const ida_fields *t;
    IDA_NEED(key);
    IDA_TRY(find_struct(group, options, bytes, &t));
    return ida_fields_set_list(t, options, key, values, n);
}

ida_status ida_options_get(const char *group, const void *options, size_t bytes, char **json) {
    const ida_fields *t;
    json_t *j = NULL;
    IDA_NEED(json);
    *json = NULL;
    IDA_TRY(find_struct(group, options, bytes, &t));
    IDA_TRY(ida_fields_to_json(t, options, 0, &j));
    return dump(j, json);
}
