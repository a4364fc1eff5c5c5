/* options.c - parsing of a command's options with getopt_long, and the messages for what does not fit. Not here: the
 * list of the options (options_table.c), help and man text (help.c), numbers and ranges, which are the library's to
 * read.
 * Invariant: every refusal is one line that names the option, the value and what is legal. */
#include <assert.h>
#include <getopt.h>
#include <stdarg.h>
#include <string.h>

#include "common.h"

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

static int unknown_option(const options *o, const char *word) {
    const char *names[MAX_OPTIONS + 1];
    for (int i = 0; i < o->n; i++) names[i] = o->all[i].name;
    names[o->n] = NULL;
    char name[64];
    snprintf(name, sizeof name, "%s", word + strspn(word, "-"));
    name[strcspn(name, "=")] = 0;
    const char *near = nearest_name(name, names);
    if (near) return usage_error(o->cmd, "unknown option %.60s; did you mean --%s?", word, near);
    return usage_error(o->cmd, "unknown option %.60s; \"idattn %s --help\" lists the options", word, o->cmd->name);
}

static int append(const options *o, opt *p, const char *text) {
    const char **grown = realloc(p->list, (size_t)(p->n + 1) * sizeof *grown);
    if (!grown) return usage_error(o->cmd, "out of memory");
    p->list = grown;
    p->list[p->n++] = text;
    return 0;
}

/* One option as it comes; text NULL: a flag. */
static int take(const options *o, opt *p, const char *text) {
    if (p->given && p->type == OPT_TEXT) return usage_error(o->cmd, "--%s is given twice; give it once", p->name);
    if (p->type == OPT_TEXT && p->group < 0 && !*text)
        return usage_error(o->cmd, "--%s: the value is empty; give %s", p->name, p->arg);
    p->given = true;
    p->text = text;
    if (p->type == OPT_LIST && append(o, p, text)) return 2;
    if (p->group < 0) return 0;
    return option_set(o, p, o->groups[p->group].block) ? usage_error(o->cmd, "--%s", ida_last_error()) : 0;
}

/* getopt_long does not say which word it refused: a long option is the last one taken, a short one is in optopt. */
static int refused(const options *o, int code, char **argv) {
    const opt *p = NULL;
    if (optopt >= LONG_BASE && optopt < LONG_BASE + o->n) p = &o->all[optopt - LONG_BASE];
    for (int i = 0; !p && optopt > 0 && i < o->n; i++)
        if (o->all[i].letter == optopt) p = &o->all[i];
    if (p && code == ':') return usage_error(o->cmd, "--%s needs a value: %s", p->name, p->arg);
    if (p) return usage_error(o->cmd, "--%s takes no value", p->name);
    if (optopt > 0 && optopt < LONG_BASE) {
        char word[3] = {'-', (char)optopt, 0};
        return unknown_option(o, word);
    }
    return unknown_option(o, argv[optind - 1]);
}

static int parse_words(options *o, int argc, char **argv) {
    struct option longs[MAX_OPTIONS + 1];
    char shorts[2 * MAX_OPTIONS + 4] = ":";
    memset(longs, 0, sizeof longs);
    for (int i = 0; i < o->n; i++) {
        const opt *p = &o->all[i];
        bool takes = p->type != OPT_FLAG;
        longs[i] = (struct option){p->name, takes ? required_argument : no_argument, NULL, LONG_BASE + i};
        if (p->letter) snprintf(shorts + strlen(shorts), 3, "%c%s", p->letter, takes ? ":" : "");
    }
    opterr = 0;
    optind = 0;
    for (int c; (c = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
        if (c == '?' || c == ':') return refused(o, c, argv);
        int i = c - LONG_BASE;
        if (c < LONG_BASE)
            for (i = 0; o->all[i].letter != c;) i++;
        if (strcmp(o->all[i].name, "help") == 0) {
            options_help(o->cmd, stdout);
            return -1;
        }
        int rc = take(o, &o->all[i], o->all[i].type == OPT_FLAG ? NULL : optarg);
        if (rc) return rc;
    }
    return 0;
}

int options_parse(const command *cmd, int argc, char **argv, options *o) {
    int rc = options_make(cmd, o);
    assert(rc || o->n <= MAX_OPTIONS);
    if (!rc) rc = parse_words(o, argc, argv);
    if (rc) return rc;
    o->args = (const char *const *)(argv + optind);
    o->n_args = argc - optind;
    if (o->n_args < cmd->min_args) return usage_error(cmd, "an argument is missing; usage: idattn %s %s", cmd->name, cmd->args);
    if (cmd->max_args >= 0 && o->n_args > cmd->max_args)
        return usage_error(cmd, "unexpected argument \"%.80s\"; usage: idattn %s %s", o->args[cmd->max_args], cmd->name,
                           cmd->args);
    return 0;
}

static const opt *find(const options *o, const char *name) {
    int i = 0;
    while (i < o->n && strcmp(o->all[i].name, name) != 0) i++;
    assert(i < o->n);
    return &o->all[i];
}

const char *opt_str(const options *o, const char *name) { return find(o, name)->text; }
bool opt_flag(const options *o, const char *name) { return find(o, name)->given; }
bool opt_given(const options *o, const char *name) { return find(o, name)->given; }
