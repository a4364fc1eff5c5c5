/* help.c - `--help` and the man page, both printed from a command's list of options. Not here: parsing (options.c). */
#include <string.h>

#include "common.h"

/* ---- lists of names in a command's texts */

/* The names of an option, word "group:key"; of all groups whose name begins with the word and a point, "bench". */
static json_t *names_of(const char *word) {
    char group[32] = "", *text = NULL;
    const char *colon = strchr(word, ':');
    size_t i, n = strcspn(word, ":");
    json_t *list = json_array(), *row;
    snprintf(group, sizeof group, "%.*s", (int)n, word);
    if (ida_options_json(colon ? group : NULL, &text)) return list;
    json_t *found = parse_library_json(text);
    json_array_foreach(colon ? json_object_get(found, "options") : found, i, row) {
        const char *name = json_string_value(json_object_get(row, colon ? "key" : "group"));
        if (colon && strcmp(name, colon + 1) == 0) json_array_extend(list, json_object_get(row, "names"));
        if (!colon && strncmp(name, group, n) == 0 && name[n] == '.')
            json_array_append_new(list, json_string(name + n + 1));
    }
    json_decref(found);
    return list;
}

char *with_names(const char *text) {
    char *out = NULL, word[64];
    size_t size, i;
    json_t *name;
    FILE *f = open_memstream(&out, &size);
    if (!f) return NULL;
    while (*text) {
        int plain = (int)strcspn(text, "{");
        fprintf(f, "%.*s", plain, text);
        text += plain;
        if (!*text) break;
        int n = (int)strcspn(text, "}");
        snprintf(word, sizeof word, "%.*s", n - 1, text + 1);
        json_t *list = names_of(word);
        json_array_foreach(list, i, name) fprintf(f, "%s%s", i ? ", " : "", json_string_value(name));
        json_decref(list);
        text += n + 1;
    }
    if (fclose(f) == 0) return out;
    free(out);
    return NULL;
}

/* ---- on a terminal */

/* Prints `text` wrapped at `width` columns; lines after the first start `indent` columns in. */
static void wrap(FILE *f, const char *text, int indent, int width) {
    int col = indent;
    while (*text) {
        int len = (int)strcspn(text, " \n");
        if (col > indent && col + 1 + len > width) {
            fprintf(f, "\n%*s", indent, "");
            col = indent;
        } else if (col > indent) {
            fputc(' ', f);
            col++;
        }
        fprintf(f, "%.*s", len, text);
        col += len;
        text += len;
        if (*text == '\n') {
            fprintf(f, "\n%*s", indent, "");
            col = indent;
        }
        if (*text) text++;
    }
    fputc('\n', f);
}

static void help_line(const opt *p, FILE *f) {
    enum { COLUMN = 28, WIDTH = 110 };
    char left[96], help[512];
    int n = snprintf(left, sizeof left, "  --%s%s%s", p->name, p->type == OPT_FLAG ? "" : " ",
                     p->type == OPT_FLAG ? "" : p->arg);
    if (p->letter) n += snprintf(left + n, sizeof left - (size_t)n, ", -%c", p->letter);
    snprintf(help, sizeof help, "%s%s%s%s%s", p->help, p->type == OPT_LIST ? " (may be repeated)" : "",
             *p->def ? " [" : "", p->def, *p->def ? "]" : "");
    if (n < COLUMN) fprintf(f, "%-*s", COLUMN, left);
    else fprintf(f, "%s\n%*s", left, COLUMN, "");
    wrap(f, help, COLUMN, WIDTH);
}

void options_help(const command *cmd, FILE *f) {
    enum { WIDTH = 110 };
    options o;
    char *summary = with_names(cmd->summary), *text = with_names(cmd->text);
    if (options_make(cmd, &o) == 0 && summary && text) {
        fprintf(f, "usage: idattn %s %s\n\n", cmd->name, cmd->args);
        wrap(f, summary, 0, WIDTH);
        if (*text) {
            fputc('\n', f);
            wrap(f, text, 0, WIDTH);
        }
        fprintf(f, "\noptions:\n");
        for (int i = 0; i < o.n; i++) help_line(&o.all[i], f);
    }
    options_free(&o);
    free(summary);
    free(text);
}

/* ---- as a man page */

/* roff: a backslash and a leading dot or quote would be read as requests; a plain minus would become a hyphen. */
static void roff(FILE *f, const char *text) {
    bool start = true;
    for (; *text; text++) {
        if (start && (*text == '.' || *text == '\'')) fputs("\\&", f);
        if (*text == '\\') fputs("\\e", f);
        else if (*text == '-') fputs("\\-", f);
        else fputc(*text, f);
        start = *text == '\n';
    }
}

static void man_option(const opt *p, FILE *f) {
    fprintf(f, ".TP\n.BR ");
    roff(f, "--");
    roff(f, p->name);
    if (p->letter) fprintf(f, ", \\-%c", p->letter);
    if (p->type != OPT_FLAG) {
        fprintf(f, " \" \\fI");
        roff(f, p->arg);
        fprintf(f, "\\fR\"");
    }
    fputc('\n', f);
    roff(f, p->help);
    if (p->type == OPT_LIST) fprintf(f, " (may be repeated)");
    if (*p->def) {
        fprintf(f, " [");
        roff(f, p->def);
        fprintf(f, "]");
    }
    fputc('\n', f);
}

static void man_command(const command *c, FILE *f) {
    options o;
    char *summary = with_names(c->summary), *text = with_names(c->text);
    if (options_make(c, &o) == 0 && summary && text) {
        fprintf(f, ".SS \"idattn %s ", c->name);
        for (const char *p = c->args; *p; p++) {
            if (*p == '-') fputs("\\-", f);
            else if (*p == '"') fputs("\\(dq", f);
            else fputc(*p, f);
        }
        fprintf(f, "\"\n");
        roff(f, summary);
        fputc('\n', f);
        if (*text) {
            fprintf(f, ".PP\n");
            roff(f, text);
            fputc('\n', f);
        }
        for (int i = 0; i < o.n; i++) man_option(&o.all[i], f);
    }
    options_free(&o);
    free(summary);
    free(text);
}

void options_man(const command *const *cmds, FILE *f) {
    fprintf(
        f,
        ".TH IDATTN 1 \"\" \"idattn %s\" \"User Commands\"\n.SH NAME\nidattn \\- train, evaluate and run Interdomain "
        "Attention "
        "language models\n.SH SYNOPSIS\n.B idattn\n.I command\n[\\fIoptions\\fR] [\\fIarguments\\fR]\n.SH COMMANDS\n",
        ida_version());
    for (; *cmds; cmds++) man_command(*cmds, f);
    fprintf(
        f,
        ".SH EXIT STATUS\n0 success, 1 failure, 2 wrong usage. A failure prints one line on standard error: what, where, and how "
        "to mend it.\n.SH ENVIRONMENT\n.TP\n.B IDA_ISA\nbase, avx2 or avx512: use a lower vector instruction set than the "
        "machine "
        "has.\n.SH SIGNALS\n.B idattn train\nfinishes the step, saves a checkpoint and exits 0 on SIGTERM, SIGINT and "
        "SIGUSR1.\n");
}
