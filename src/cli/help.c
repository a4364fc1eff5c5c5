/* help.c - `--help` and the man page, both printed from the option tables. Not here: parsing (options.c). */
#include "options.h"

#include <idattn.h>
#include <string.h>

static const char *short_arg(const option_spec *s) { return s->type == OPT_FLAG ? "" : s->arg; }

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

void options_help(const command *cmd, FILE *f) {
    enum { COLUMN = 28, WIDTH = 110 };
    fprintf(f, "usage: idattn %s %s\n\n", cmd->name, cmd->args);
    wrap(f, cmd->summary, 0, WIDTH);
    if (*cmd->text) {
        fputc('\n', f);
        wrap(f, cmd->text, 0, WIDTH);
    }
    fprintf(f, "\noptions:\n");
    for (const option_spec *s = cmd->options; s->name; s++) {
        char left[96], help[512];
        int n = snprintf(left, sizeof left, "  --%s%s%s", s->name, s->type == OPT_FLAG ? "" : " ", short_arg(s));
        if (s->letter) n += snprintf(left + n, sizeof left - (size_t)n, ", -%c", s->letter);
        snprintf(help, sizeof help, "%s%s%s%s%s", s->help, s->type == OPT_LIST ? " (may be repeated)" : "", s->def ? " [" : "",
                 s->def ? s->def : "", s->def ? "]" : "");
        if (n < COLUMN) fprintf(f, "%-*s", COLUMN, left);
        else fprintf(f, "%s\n%*s", left, COLUMN, "");
        wrap(f, help, COLUMN, WIDTH);
    }
}

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

void options_man(const command *const *cmds, FILE *f) {
    fprintf(
        f,
        ".TH IDATTN 1 \"\" \"idattn %s\" \"User Commands\"\n.SH NAME\nidattn \\- train, evaluate and run Interdomain Attention "
        "language models\n.SH SYNOPSIS\n.B idattn\n.I command\n[\\fIoptions\\fR] [\\fIarguments\\fR]\n.SH COMMANDS\n",
        ida_version());
    for (; *cmds; cmds++) {
        const command *c = *cmds;
        fprintf(f, ".SS \"idattn %s ", c->name);
        for (const char *p = c->args; *p; p++) {
            if (*p == '-') fputs("\\-", f);
            else if (*p == '"') fputs("\\(dq", f);
            else fputc(*p, f);
        }
        fprintf(f, "\"\n");
        roff(f, c->summary);
        fputc('\n', f);
        if (*c->text) {
            fprintf(f, ".PP\n");
            roff(f, c->text);
            fputc('\n', f);
        }
        for (const option_spec *s = c->options; s->name; s++) {
            fprintf(f, ".TP\n.BR ");
            roff(f, "--");
            roff(f, s->name);
            if (s->letter) fprintf(f, ", \\-%c", s->letter);
            if (s->type != OPT_FLAG) {
                fprintf(f, " \" \\fI");
                roff(f, s->arg);
                fprintf(f, "\\fR\"");
            }
            fputc('\n', f);
            roff(f, s->help);
            if (s->type == OPT_LIST) fprintf(f, " (may be repeated)");
            if (s->def) {
                fprintf(f, " [");
                roff(f, s->def);
                fprintf(f, "]");
            }
            fputc('\n', f);
        }
    }
    fprintf(
        f,
        ".SH EXIT STATUS\n0 success, 1 failure, 2 wrong usage. A failure prints one line on standard error: what, where, and how "
        "to mend it.\n.SH ENVIRONMENT\n.TP\n.B IDA_ISA\nbase, avx2 or avx512: use a lower vector instruction set than the "
        "machine "
        "has.\n.SH SIGNALS\n.B idattn train\nfinishes the step, saves a checkpoint and exits 0 on SIGTERM, SIGINT and "
        "SIGUSR1.\n");
}
