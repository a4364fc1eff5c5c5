/* main.c - finds the command, runs it, and turns a failed write on standard output into exit code 1.
 * Not here: options (options.c) and what commands do (one file each). */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "common.h"

const command *const all_commands[] = {&command_info,
                                       &command_doctor,
                                       &command_mixer,
                                       &command_tokenizer_train,
                                       &command_tokenizer_encode,
                                       &command_tokenizer_decode,
                                       &command_data_pack,
                                       &command_data_inspect,
                                       &command_train,
                                       &command_eval_ppl,
                                       &command_eval_length,
                                       &command_generate,
                                       &command_bench,
                                       &command_report,
                                       &command_help,
                                       &command_version,
                                       NULL};

/* The command of argv[1..], and how many words its name has. A first word that only begins names ("data") gives words = 1. */
static const command *find_command(int argc, char **argv, int *words) {
    char two[64] = "";
    if (argc > 2) snprintf(two, sizeof two, "%s %s", argv[1], argv[2]);
    for (int i = 0; all_commands[i]; i++) {
        if (strcmp(all_commands[i]->name, argv[1]) == 0) return *words = 1, all_commands[i];
        if (strcmp(all_commands[i]->name, two) == 0) return *words = 2, all_commands[i];
    }
    return NULL;
}

static void overview(FILE *f) {
    fprintf(f,
            "usage: idattn COMMAND [options] [arguments]\n\nTrain, evaluate and run Interdomain Attention language models.\n\n");
    for (int i = 0; all_commands[i]; i++) {
        char *summary = with_names(all_commands[i]->summary);
        fprintf(f, "  %-18s %s\n", all_commands[i]->name, summary ? summary : "");
        free(summary);
    }
    fprintf(f, "\n\"idattn COMMAND --help\" lists a command's options. Exit codes: 0 success, 1 failure, 2 wrong usage.\n");
}

/* Help of the command `name`, or of all whose first word it is. */
static bool help_of(const char *name) {
    size_t n = strlen(name);
    bool found = false;
    for (int i = 0; all_commands[i]; i++) {
        const char *c = all_commands[i]->name;
        if (strncmp(c, name, n) != 0 || (c[n] != 0 && c[n] != ' ')) continue;
        if (found) putchar('\n');
        options_help(all_commands[i], stdout);
        found = true;
    }
    return found;
}

/* The options of the library as it describes them: of one group, or of all. */
static int print_groups(const options *o) {
    char *text = NULL;
    ida_status st = ida_options_json(o->n_args ? o->args[0] : NULL, &text);
    if (st) return fail(o, st, NULL);
    puts(text);
    ida_string_free(text);
    return EXIT_OK;
}

static int run_help(const options *o) {
    char name[64] = "";
    if (opt_flag(o, "json")) return print_groups(o);
    if (opt_flag(o, "man")) options_man(all_commands, stdout);
    else if (o->n_args == 0) overview(stdout);
    else {
        snprintf(name, sizeof name, "%s%s%s", o->args[0], o->n_args > 1 ? " " : "", o->n_args > 1 ? o->args[1] : "");
        if (!help_of(name)) return usage_error(o->cmd, "no command \"%.60s\"; \"idattn help\" lists them", name);
    }
    return EXIT_OK;
}

const command command_help = {
    .name = "help",
    .args = "[COMMAND]",
    .summary = "this list, or a command's options",
    .text = "",
    .max_args = 2,
    .run = run_help,
    .options = (const option_spec[]){
        {"man", 0, OPT_FLAG, NULL, NULL, "print the man page (roff)"},
        {"json", 0, OPT_FLAG, NULL, NULL,
         "describe the library's options as JSON: all groups, or the one named instead of COMMAND"},
        OPT_HELP, OPT_END}};

static int run_version(const options *o) {
    if (opt_flag(o, "json")) return print_json(o, json_pack("{s:s, s:s}", "version", ida_version(), "isa", ida_isa_name()));
    printf("idattn %s\n", ida_version());
    return EXIT_OK;
}

const command command_version = {.name = "version",
                                 .args = "",
                                 .summary = "the version",
                                 .text = "",
                                 .run = run_version,
                                 .options = (const option_spec[]){OPT_JSON, OPT_HELP, OPT_END}};

static int unknown_command(int argc, char **argv) {
    enum { MAX = 32 };
    const char *names[MAX + 1];
    int n = 0;
    char two[64], sub[256] = "";
    size_t first = strlen(argv[1]);
    for (int i = 0; all_commands[i] && n < MAX; i++) {
        const char *c = all_commands[i]->name;
        if (strncmp(c, argv[1], first) == 0 && c[first] == ' ') {
            size_t k = strlen(sub);
            snprintf(sub + k, sizeof sub - k, "%s%s", k ? ", " : "", c + first + 1);
        }
        names[n++] = c;
    }
    names[n] = NULL;
    if (*sub && argc > 2 && (strcmp(argv[2], "--help") == 0 || strcmp(argv[2], "-h") == 0)) return help_of(argv[1]), EXIT_OK;
    if (*sub && argc > 2) return usage_error(NULL, "%s has no sub-command \"%.40s\"; it has %s", argv[1], argv[2], sub);
    if (*sub) return usage_error(NULL, "%s needs a sub-command: %s", argv[1], sub);
    snprintf(two, sizeof two, "%s%s%s", argv[1], argc > 2 ? " " : "", argc > 2 ? argv[2] : "");
    const char *near = nearest_name(argv[1], names);
    if (!near) near = nearest_name(two, names);
    if (near) return usage_error(NULL, "unknown command \"%.60s\"; did you mean \"%s\"?", argv[1], near);
    return usage_error(NULL, "unknown command \"%.60s\"; \"idattn help\" lists the commands", argv[1]);
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        overview(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return overview(stdout), EXIT_OK;
    static char version_word[] = "version";
    if (strcmp(argv[1], "--version") == 0) argv[1] = version_word;
    int words = 0;
    const command *cmd = find_command(argc, argv, &words);
    if (!cmd) return unknown_command(argc, argv);
    options o;
    int rc = options_parse(cmd, argc - words, argv + words, &o);
    if (rc == 0) rc = cmd->run(&o);
    else if (rc < 0) rc = EXIT_OK;
    options_free(&o);
    return rc;
}

/* The exit code, once standard output is written. */
static int finish(int rc) {
    errno = 0;
    bool bad = fflush(stdout) != 0;
    const char *why = errno ? strerror(errno) : "write error";
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (!bad && !ferror(stdout)) return rc;
    if (poll(&out, 1, 0) == 1 && (out.revents & POLLERR)) return rc; /* the reader of a pipe had enough: no failure of ours */
    if (rc != EXIT_OK) return rc;
    fprintf(stderr, "idattn: cannot write standard output: %s; the output is not complete\n", why);
    return EXIT_FAIL;
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file over the limit is then a failed write with its own message */
    catch_cut_files();
    int rc = finish(dispatch(argc, argv));
#ifndef IDA_DEBUG /* sanitizers look for leaks at exit */
    /* OpenBLAS starts threads before main. Where memory for them is refused they ask for ever, and its exit handler would wait
     * for them. Nothing of ours is left to do. */
    _exit(rc);
#endif
    return rc;
}
