/* own.c - options that one layer has of its own. Invariant: a bit of `given` stands for a row of the table of the layer's mixer, so
 * a value is only ever read as what it was written as. */
#include "model/own.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "layers/layer.h"

_Static_assert(sizeof ((ida_layer_own *)0)->values == IDA_LAYER_OPTIONS, "ida_layer_own holds the options of any kind");

static const ida_fields *table_of(const ida_config *c, int64_t block) {
    const ida_layer_kind *k = ida_mixer_layer(c->layer_mixer[block]);
    return k ? k->options : NULL;
}

bool ida_own_any(const ida_config *c) {
    for (int64_t l = 0; l < c->n_layers; l++)
        if (c->layer_own[l].given) return true;
    return false;
}

const ida_field *ida_own_row(const ida_config *c, int64_t block, int64_t i, const void **base) {
    const ida_fields *t = table_of(c, block);
    if (!t || i >= t->n || !(c->layer_own[block].given >> i & 1)) return NULL;
    *base = c->layer_own[block].values;
    return &t->rows[i];
}

ida_status ida_own_set(ida_config *c, const char *key, const char *value) {
    char *end;
    const char *number = key + strlen("layers.");
    const long long l = strtoll(number, &end, 10);
    IDA_FAIL_IF(end == number || *end != '.', IDA_E_ARG, "%s: an option of a layer is layers.N.KEY, N from 0", key);
    IDA_FAIL_IF(l < 0 || l >= c->n_layers, IDA_E_ARG, "%s: there are layers 0 to %lld (set num_hidden_layers first)", key,
                (long long)c->n_layers - 1);
    const ida_fields *t = table_of(c, l);
    const ida_field *f = t ? ida_fields_find(t, end + 1) : NULL;
    IDA_FAIL_IF(!f, IDA_E_ARG, "%s: a layer of mixer %s has no option \"%s\" of its own", key,
                ida_mixer_name((ida_mixer_kind)c->layer_mixer[l]), end + 1);
    IDA_TRY(ida_fields_set(t, c->layer_own[l].values, end + 1, value, NULL));
    c->layer_own[l].given |= 1u << (f - t->rows);
    return IDA_OK;
}

static ida_status layer_from_json(const json_t *o, const char *where, ida_config *c, int64_t l) {
    const char *key, *kind, *name = ida_mixer_name((ida_mixer_kind)c->layer_mixer[l]);
    json_t *value;
    char place[256];
    snprintf(place, sizeof place, "%s: layers[%lld]", where, (long long)l);
    IDA_FAIL_IF(!json_is_object(o), IDA_E_FORMAT, "%s is not an object", place);
    IDA_TRY(ida_json_str(o, place, "kind", name, &kind));
    IDA_FAIL_IF(strcmp(kind, name) != 0, IDA_E_FORMAT, "%s: kind is \"%s\", but layer_mixers or mixer.kind say %s", place, kind, name);
    const ida_fields *t = table_of(c, l);
    json_object_foreach((json_t *)(uintptr_t)o, key, value) {
        if (strcmp(key, "kind") == 0) continue;
        const ida_field *f = ida_fields_find(t, key);
        IDA_FAIL_IF(!f || strcmp(f->key, key) != 0, IDA_E_FORMAT, "%s: \"%s\" is not an option of a layer of mixer %s", place, key, name);
        if (json_is_null(value)) continue;
        IDA_TRY(ida_field_from_json(f, o, place, key, c->layer_own[l].values));
        c->layer_own[l].given |= 1u << (f - t->rows);
    }
    return IDA_OK;
}

ida_status ida_own_from_json(const json_t *list, const char *where, ida_config *c) {
    if (!list || json_is_null(list)) return IDA_OK;
    IDA_FAIL_IF(!json_is_array(list) || json_array_size(list) != (size_t)c->n_layers, IDA_E_FORMAT,
                "%s: layers must be a list of num_hidden_layers (%lld) objects", where, (long long)c->n_layers);
    for (int64_t l = 0; l < c->n_layers; l++) IDA_TRY(layer_from_json(json_array_get(list, (size_t)l), where, c, l));
    return IDA_OK;
}

json_t *ida_own_to_json(const ida_config *c) {
    json_t *list = json_array();
    for (int64_t l = 0; l < c->n_layers && list; l++) {
        const ida_fields *t = table_of(c, l);
        json_t *o = json_pack("{s:s}", "kind", ida_mixer_name((ida_mixer_kind)c->layer_mixer[l]));
        int bad = !o;
        for (int64_t i = 0; i < t->n && !bad; i++) {
            const void *base;
            const ida_field *f = ida_own_row(c, l, i, &base);
            if (f) bad = json_object_set_new(o, f->key, ida_field_to_json(f, base));
        }
        if (bad) json_decref(o);
        if (bad || json_array_append_new(list, o)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* The first option that only one of the two has; there is one. */
static void tell_one_sided(const ida_fields *t, const ida_layer_own *x, const ida_layer_own *y, ida_difference *d) {
    int64_t i = 0;
    while (i + 1 < t->n && !((x->given ^ y->given) >> i & 1)) i++;
    const bool first = x->given >> i & 1;
    json_t *value = ida_field_to_json(&t->rows[i], first ? x->values : y->values);
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    snprintf(d->key, sizeof d->key, "%s", t->rows[i].key);
    snprintf(d->a, sizeof d->a, "%s", first && text ? text : "not set");
    snprintf(d->b, sizeof d->b, "%s", !first && text ? text : "not set");
    free(text);
    json_decref(value);
}

bool ida_own_differ(const ida_config *a, const ida_config *b, ida_difference *d) {
    for (int64_t l = 0; l < a->n_layers; l++) {
        const ida_layer_own *x = &a->layer_own[l], *y = &b->layer_own[l];
        const ida_fields *t = table_of(a, l);
        if (!t || (x->given == y->given && !ida_fields_differ(t, x->values, y->values, 0, d))) continue;
        if (x->given != y->given) tell_one_sided(t, x, y, d);
        char key[64];
        snprintf(key, sizeof key, "layers.%lld.%.40s", (long long)l, d->key);
        memcpy(d->key, key, sizeof key);
        return true;
    }
    return false;
}

static ida_status check_layer(const ida_config *c, int64_t l) {
    const ida_fields *t = table_of(c, l);
    const ida_layer_own *own = &c->layer_own[l];
    IDA_FAIL_IF(t->n < 32 && own->given >> t->n, IDA_E_ARG, "layer %lld has options of its own that mixer %s does not have",
                (long long)l, ida_mixer_name((ida_mixer_kind)c->layer_mixer[l]));
    for (int64_t i = 0; i < t->n; i++)
        if (own->given >> i & 1 && ida_fields_check_one(t, own->values, t->rows[i].key) != IDA_OK)
            return ida_fail_prefix(IDA_E_ARG, "layer %lld", (long long)l);
    return IDA_OK;
}

ida_status ida_own_check(const ida_config *c) {
    for (int64_t l = 0; l < c->n_layers; l++)
        if (c->layer_own[l].given) IDA_TRY(check_layer(c, l));
    return IDA_OK;
}
