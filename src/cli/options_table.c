/* options_table.c - the list of a command's options, made of its own table and of the library's descriptions. Not
 * here: parsing (options.c), printing (help.c). */
#include <assert.h>
#include <string.h>

#include "common.h"

static const char *text_of(const json_t *o, const char *key) { return json_string_value(json_object_get(o, key)); }

/* As it is typed: 1e-05 and not 1.0000000000000001e-05, nothing for what has none or is off. */
static void show_default(const json_t *v, char out[40]) {
    if (json_is_integer(v)) snprintf(out, 40, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v)) snprintf(out, 40, "%.15g", json_real_value(v));
    else snprintf(out, 40, "%s", json_is_string(v) ? json_string_value(v) : "");
}

static opt library_option(const json_t *d, int group) {
    const char *type = text_of(d, "type"), *letter = text_of(d, "letter");
    opt o = {.arg = text_of(d, "arg"), .help = text_of(d, "help"), .group = group};
    if (letter) o.letter = *letter;
    o.type = strcmp(type, "bool") == 0 ? OPT_FLAG : strcmp(type, "list") == 0 ? OPT_LIST : OPT_TEXT;
    snprintf(o.name, sizeof o.name, "%s", text_of(d, "key"));
    for (char *p = o.name; *p; p++)
        if (*p == '_') *p = '-';
    if (o.type == OPT_TEXT) show_default(json_object_get(d, "default"), o.def);
    return o;
}

static bool add(options *o, const opt *one) {
    opt *grown = realloc(o->all, ((size_t)o->n + 1) * sizeof *grown);
    if (!grown) return false;
    o->all = grown;
    o->all[o->n++] = *one;
    return true;
}

/* The group's place in o, opened when it is new; -1 = no memory. */
static int open_group(options *o, const char *name) {
    for (int i = 0; i < o->n_groups; i++)
        if (strcmp(o->groups[i].name, name) == 0) return i;
    assert(o->n_groups < MAX_GROUPS);
    option_group *g = &o->groups[o->n_groups];
    char *text = NULL;
    *g = (option_group){.name = name};
    if (ida_options_json(name, &text) || !(g->description = parse_library_json(text))) return -1;
    g->bytes = (size_t)json_integer_value(json_object_get(g->description, "bytes"));
    g->block = malloc(g->bytes);
    o->n_groups++;
    return g->block && ida_options_defaults(name, g->block, g->bytes) == IDA_OK ? o->n_groups - 1 : -1;
}

static bool add_group(options *o, const option_spec *s) {
    int i = open_group(o, s->name);
    if (i < 0) return false;
    option_group *g = &o->groups[i];
    const json_t *list = json_object_get(g->description, "options"), *d;
    for (bool last = false; !last && (d = json_array_get(list, g->placed)); g->placed++) {
        opt one = library_option(d, i);
        last = s->arg && strcmp(text_of(d, "key"), s->arg) == 0;
        if (!json_is_true(json_object_get(d, "argument")) && !add(o, &one)) return false;
    }
    return true;
}

static bool add_own(options *o, const option_spec *s) {
    opt one = {.arg = s->arg, .help = s->help, .letter = s->letter, .type = s->type, .group = -1, .text = s->def};
    snprintf(one.name, sizeof one.name, "%s", s->name);
    snprintf(one.def, sizeof one.def, "%s", s->def ? s->def : "");
    return add(o, &one);
}

int options_make(const command *cmd, options *o) {
    *o = (options){.cmd = cmd};
    for (const option_spec *s = cmd->options; s->name; s++) {
        bool good = s->type == OPT_GROUP ? add_group(o, s) : add_own(o, s);
        if (!good) return usage_error(cmd, "out of memory");
    }
    return 0;
}

void options_free(options *o) {
    for (int i = 0; i < o->n; i++) free(o->all[i].list);
    for (int i = 0; i < o->n_groups; i++) {
        json_decref(o->groups[i].description);
        free(o->groups[i].block);
    }
    free(o->all);
    *o = (options){0};
}

static const option_group *group_of(const options *o, const char *name) {
    int i = 0;
    while (i < o->n_groups && strcmp(o->groups[i].name, name) != 0) i++;
    assert(i < o->n_groups);
    return &o->groups[i];
}

void *options_of(const options *o, const char *group) { return group_of(o, group)->block; }

int option_set(const options *o, const opt *p, void *to) {
    const option_group *g = &o->groups[p->group];
    if (p->type == OPT_LIST) return ida_options_set_list(g->name, to, g->bytes, p->name, p->list, p->n);
    return ida_options_set(g->name, to, g->bytes, p->name, p->type == OPT_FLAG ? "true" : p->text);
}

void options_apply(const options *o, const char *group, void *to) {
    const option_group *g = group_of(o, group);
    for (const opt *p = o->all; p < o->all + o->n; p++) {
        if (!p->given || p->group < 0 || &o->groups[p->group] != g) continue;
        int st = option_set(o, p, to);
        assert(st == IDA_OK); /* it was taken before */
        (void)st;
    }
}
