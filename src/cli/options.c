/* options.c - parsing of a command's table with getopt_long, and the messages for what does not fit it.
 * Not here: help and man text (help.c). Invariant: every refusal is one line that names the option, the value and what is legal.
 */
#include "options.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { LONG_BASE = 256, MAX_OPTIONS = 64 };

int usage_error(const command *cmd, const char *fmt, ...) {
    char msg[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    for (char *p = msg; *p; p++)
        if (*p == '\n' || *p == '\r') *p = ' ';
    if (cmd) fprintf(stderr, "idattn %s: %s\n", cmd->name, msg);
    else fprintf(stderr, "idattn: %s\n", msg);
    return 2;
}

static int edit_distance(const char *a, const char *b) {
    enum { MAX = 40 };
    int row[MAX + 1];
    int na = (int)strnlen(a, MAX), nb = (int)strnlen(b, MAX);
    for (int j = 0; j <= nb; j++) row[j] = j;
    for (int i = 1; i <= na; i++) {
        int diag = row[0];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int subst = diag + (a[i - 1] != b[j - 1]);
            diag = row[j];
            int best = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            row[j] = subst < best ? subst : best;
        }
    }
    return row[nb];
}

const char *nearest_name(const char *word, const char *const *names) {
    const char *best = NULL;
    int limit = (int)strlen(word) / 3 + 1, best_d = limit + 1;
    for (; *names; names++) {
        int d = edit_distance(word, *names);
        if (d < best_d) best_d = d, best = *names;
    }
    return best;
}

static int count_options(const command *cmd) {
    int n = 0;
    while (cmd->options[n].name) n++;
    assert(n <= MAX_OPTIONS);
    return n;
}

static int unknown_option(const command *cmd, const char *word) {
    const char *names[MAX_OPTIONS + 1];
    int n = count_options(cmd);
    for (int i = 0; i < n; i++) names[i] = cmd->options[i].name;
    names[n] = NULL;
    char name[64];
    snprintf(name, sizeof name, "%s", word + strspn(word, "-"));
    name[strcspn(name, "=")] = 0;
    const char *near = nearest_name(name, names);
    if (near) return usage_error(cmd, "unknown option %.60s; did you mean --%s?", word, near);
    return usage_error(cmd, "unknown option %.60s; \"idattn %s --help\" lists the options", word, cmd->name);
}

/* The upper end of "any whole number" is told only to who is above it. */
static int out_of_range(const command *cmd, const option_spec *s, const char *text) {
    if (s->type == OPT_INT && s->hi >= OPT_MAX_INT && !(strtod(text, NULL) > s->hi))
        return usage_error(cmd, "--%s: \"%.80s\" is not a whole number of at least %.0f", s->name, text, s->lo);
    if (s->type == OPT_INT)
        return usage_error(cmd, "--%s: \"%.80s\" is not a whole number from %.0f to %.0f", s->name, text, s->lo, s->hi);
    if (isinf(s->hi)) return usage_error(cmd, "--%s: \"%.80s\" is not a number of at least %g", s->name, text, s->lo);
    return usage_error(cmd, "--%s: \"%.80s\" is not a number from %.10g to %.10g", s->name, text, s->lo, s->hi);
}

static bool choice_is_legal(const char *choices, const char *word) {
    size_t n = strlen(word);
    for (const char *p = choices; *p;) {
        size_t k = strcspn(p, "|");
        if (k == n && memcmp(p, word, n) == 0) return true;
        p += k + (p[k] == '|');
    }
    return false;
}

static int set_value(const command *cmd, const option_spec *s, option_value *v, const char *text, bool given) {
    char *end = NULL;
    if (given && s->type != OPT_LIST && v->given && s->type != OPT_FLAG)
        return usage_error(cmd, "--%s is given twice; give it once", s->name);
    v->given = given;
    errno = 0;
    switch (s->type) {
    case OPT_FLAG: v->i = 1; break;
    case OPT_INT: {
        long long x = strtoll(text, &end, 10);
        if (end == text || *end || errno || (double)x < s->lo || (double)x > s->hi) return out_of_range(cmd, s, text);
        v->i = x;
        break;
    }
    case OPT_NUM:
        v->d = strtod(text, &end);
        if (end == text || *end || !isfinite(v->d) || v->d < s->lo || v->d > s->hi) return out_of_range(cmd, s, text);
        break;
    case OPT_CHOICE:
        if (!choice_is_legal(s->arg, text)) return usage_error(cmd, "--%s: \"%.80s\" is not one of %s", s->name, text, s->arg);
        v->s = text;
        break;
    case OPT_STR:
        if (!*text && given) return usage_error(cmd, "--%s: the value is empty; give %s", s->name, s->arg);
        v->s = text;
        break;
    case OPT_LIST: {
        const char **grown = realloc(v->list, (size_t)(v->n + 1) * sizeof *grown);
        if (!grown) return usage_error(cmd, "out of memory");
        v->list = grown;
        v->list[v->n++] = text;
        break;
    }
    }
    return 0;
}

/* getopt_long does not say which word it refused: a long option is the last one taken, a short one is in optopt. */
static int refused(const command *cmd, int code, char **argv, int n) {
    const option_spec *s = NULL;
    if (optopt >= LONG_BASE && optopt < LONG_BASE + n) s = &cmd->options[optopt - LONG_BASE];
    for (int i = 0; !s && optopt > 0 && i < n; i++)
        if (cmd->options[i].letter == optopt) s = &cmd->options[i];
    if (s && code == ':') return usage_error(cmd, "--%s needs a value: %s", s->name, s->arg);
    if (s) return usage_error(cmd, "--%s takes no value", s->name);
    if (optopt > 0 && optopt < LONG_BASE) {
        char word[3] = {'-', (char)optopt, 0};
        return unknown_option(cmd, word);
    }
    return unknown_option(cmd, argv[optind - 1]);
}

int options_parse(const command *cmd, int argc, char **argv, options *o) {
    struct option longs[MAX_OPTIONS + 1];
    char shorts[2 * MAX_OPTIONS + 4] = ":";
    int n = count_options(cmd);
    memset(longs, 0, sizeof longs);
    *o = (options){.cmd = cmd, .values = calloc((size_t)n, sizeof *o->values)};
    if (!o->values) return usage_error(cmd, "out of memory");
    for (int i = 0; i < n; i++) {
        const option_spec *s = &cmd->options[i];
        bool takes = s->type != OPT_FLAG;
        longs[i] = (struct option){s->name, takes ? required_argument : no_argument, NULL, LONG_BASE + i};
        if (s->letter) {
            size_t k = strlen(shorts);
            shorts[k] = s->letter;
            shorts[k + 1] = takes ? ':' : 0;
            shorts[k + 2] = 0;
        }
        if (s->def) {
            int rc = set_value(cmd, s, &o->values[i], s->def, false);
            assert(rc == 0);
            (void)rc;
        }
    }
    opterr = 0;
    optind = 0;
    for (int c; (c = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
        if (c == '?' || c == ':') return refused(cmd, c, argv, n);
        int i = c - LONG_BASE;
        if (c < LONG_BASE)
            for (i = 0; cmd->options[i].letter != c;) i++;
        if (strcmp(cmd->options[i].name, "help") == 0) {
            options_help(cmd, stdout);
            return -1;
        }
        int rc = set_value(cmd, &cmd->options[i], &o->values[i], optarg, true);
        if (rc) return rc;
    }
    o->args = (const char *const *)(argv + optind);
    o->n_args = argc - optind;
    if (o->n_args < cmd->min_args) return usage_error(cmd, "an argument is missing; usage: idattn %s %s", cmd->name, cmd->args);
    if (cmd->max_args >= 0 && o->n_args > cmd->max_args)
        return usage_error(cmd, "unexpected argument \"%.80s\"; usage: idattn %s %s", o->args[cmd->max_args], cmd->name,
                           cmd->args);
    return 0;
}

void options_free(options *o) {
    for (int i = 0; o->values && o->cmd->options[i].name; i++) free(o->values[i].list);
    free(o->values);
    *o = (options){0};
}

static const option_value *find(const options *o, const char *name) {
    int i = 0;
    while (o->cmd->options[i].name && strcmp(o->cmd->options[i].name, name) != 0) i++;
    assert(o->cmd->options[i].name);
    return &o->values[i];
}

const char *opt_str(const options *o, const char *name) { return find(o, name)->s; }
int64_t opt_int(const options *o, const char *name) { return find(o, name)->i; }
double opt_num(const options *o, const char *name) { return find(o, name)->d; }
bool opt_flag(const options *o, const char *name) { return find(o, name)->i != 0; }
bool opt_given(const options *o, const char *name) { return find(o, name)->given; }
const char *const *opt_list(const options *o, const char *name, int64_t *n) {
    const option_value *v = find(o, name);
    *n = v->n;
    return (const char *const *)v->list;
}
