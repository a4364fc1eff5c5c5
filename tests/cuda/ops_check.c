/* ops_check.c - every op of a device against the reference (ops_check.h says how). A child process does the work, so that a crash
 * or a device that stopped answering costs one op: the parent starts another child at the next one.
 *
 *     ops_check [--device cuda|cuda:N|cpu|emulated] [--dtype f32|bf16] [--only NAME] [--no-large] [--thin] [--most N]
 *               [--here] [--list]
 *
 * One line per op and dtype; exit status 0 when all passed. `cpu` runs the CPU device, `emulated` the reference behind bf16
 * arrays. For tools that slow the device down: --thin: of an op's cases the first 24 and then every 7th; --most: none whose
 * arrays have more than N elements. --here: in this process, without a child. */
#include "ops_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ops/backend.h"

typedef struct entry { const char *name; void (*check)(checker *c); } entry;
static const entry entries[] = {
#define IDA_OP(name) {#name, check_##name},
#include "ops/ops.def"
#undef IDA_OP
};
enum { N_OPS = sizeof entries / sizeof *entries, LOST = 3, SECONDS_PER_OP = 300 };

typedef struct options { const char *device, *only; bool dtype[2], large, thin, here; int64_t most; } options;
/* Written by the child, read by the parent. */
typedef struct progress { int32_t job; int32_t failed; } progress;

static const char *const dtype_name[2] = {"f32", "bf16"};

static int n_jobs(void) { return 2 * (N_OPS + n_large_checks); }
static const char *job_name(int job) { return job / 2 < N_OPS ? entries[job / 2].name : large_name(job / 2 - N_OPS); }
static bool wanted(const options *o, int job) {
    if (!o->dtype[job % 2] || (o->only && strcmp(o->only, job_name(job)))) return false;
    return job / 2 < N_OPS || o->large;
}

static ida_status open_device(const options *o, int dtype, checker *c) {
    c->bf16 = dtype == 1;
    c->emulated = !strcmp(o->device, "emulated");
    c->dev = &ida_ref_device;
    return c->emulated ? IDA_OK : ida_device_open(o->device, dtype ? IDA_BF16 : IDA_F32, &c->dev);
}

static void print_line(const checker *c, const char *name) {
    if (c->failures == 0 && c->cases == 0) {
        printf("%-22s %-5s no case: FAIL\n", name, dtype_name[c->bf16]);
        return;
    }
    printf("%-22s %-5s %4lld cases  worst %.2e of %.2e at %s: %s", name, dtype_name[c->bf16], (long long)c->cases, c->worst_error,
           c->worst_limit, c->worst_at, c->failures ? "FAIL" : "ok\n");
    if (c->failures) printf(" (%lld)\n", (long long)c->failures);
}

/* pipe_to < 0: there is nobody to tell. */
static bool tell(int pipe_to, const progress *p) { return pipe_to < 0 || write(pipe_to, p, sizeof *p) == sizeof *p; }

/* Runs jobs from `job` on; tells the parent before each. Returns an exit status. */
static int child(const options *o, int job, int pipe_to) {
    int status = 0;
    for (; job < n_jobs(); job++) {
        if (!wanted(o, job)) continue;
        const char *name = job_name(job);
        checker c = {.op = name, .seed = 1000 + (uint64_t)job, .thin = o->thin, .most = o->most};
        progress p = {job, 0};
        if (!tell(pipe_to, &p)) return 1;
        if (!o->here) alarm(SECONDS_PER_OP);
        if (open_device(o, job % 2, &c)) {
            printf("%-22s %-5s %s: FAIL\n", name, dtype_name[job % 2], ida_last_error());
            p.failed = 1;
        } else {
            if (job / 2 < N_OPS) entries[job / 2].check(&c);
            else large_check(&c, job / 2 - N_OPS);
            print_line(&c, name);
            p.failed = c.failures > 0 || c.cases == 0;
        }
        fflush(stdout);
        if (p.failed) status = 1;
        if (p.failed && !tell(pipe_to, &p)) return 1;
        if (c.broken) return LOST;
    }
    return status;
}

static int parent(const options *o) {
    int failed = 0, last_failed = -1;
    for (int job = 0; job < n_jobs();) {
        int ends[2], status;
        fflush(stdout);
        if (pipe(ends)) return 1;
        const pid_t pid = fork();
        if (pid < 0) return 1;
        if (pid == 0) {
            close(ends[0]);
            exit(child(o, job, ends[1]));
        }
        close(ends[1]);
        progress p = {job, 0}, at;
        while (read(ends[0], &at, sizeof at) == sizeof at) {
            p = at;
            if (p.failed && last_failed != p.job) failed++, last_failed = p.job;
        }
        close(ends[0]);
        if (waitpid(pid, &status, 0) != pid) return 1;
        if (WIFEXITED(status) && WEXITSTATUS(status) != LOST) {
            if (WEXITSTATUS(status) > 1) failed++;
            break;
        }
        if (WIFSIGNALED(status)) {
            printf("%-22s %-5s killed by signal %d: FAIL\n", job_name(p.job), dtype_name[p.job % 2], WTERMSIG(status));
            if (last_failed != p.job) failed++, last_failed = p.job;
        }
        job = p.job + 1;
    }
    return failed;
}

static int usage(const char *what) {
    fprintf(stderr,
            "ops_check: %s\nusage: ops_check [--device cuda|cuda:N|cpu|emulated] [--dtype f32|bf16] [--only NAME] [--no-large] "
            "[--thin] [--most N] [--here] [--list]\n",
            what);
    return 2;
}

int main(int argc, char **argv) {
    options o = {.device = "cuda", .dtype = {true, true}, .large = true};
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--list")) {
            for (int j = 0; j < n_jobs(); j += 2) printf("%s\n", job_name(j));
            return 0;
        }
        bool *flag = !strcmp(argv[i], "--thin") ? &o.thin : !strcmp(argv[i], "--here") ? &o.here : NULL;
        if (flag) {
            *flag = true;
            continue;
        }
        if (!strcmp(argv[i], "--no-large")) {
            o.large = false;
            continue;
        }
        if (!next) return usage("an option lacks its value, or is unknown");
        if (!strcmp(argv[i], "--device")) o.device = next;
        else if (!strcmp(argv[i], "--only")) o.only = next;
        else if (!strcmp(argv[i], "--most")) o.most = atoll(next);
        else if (!strcmp(argv[i], "--dtype") && !strcmp(next, "f32")) o.dtype[1] = false;
        else if (!strcmp(argv[i], "--dtype") && !strcmp(next, "bf16")) o.dtype[0] = false;
        else return usage(argv[i]);
        i++;
    }
    if (strncmp(o.device, "cuda", 4)) o.large = false;
    if (!strcmp(o.device, "cpu")) o.dtype[1] = false;
    bool any = false;
    for (int job = 0; job < n_jobs(); job++) any = any || wanted(&o, job);
    if (!any) return usage("nothing to run: see --list");
    const int failed = o.here ? child(&o, 0, -1) : parent(&o);
    if (failed) printf("%d FAILED\n", failed);
    else printf("all passed\n");
    return failed > 0;
}
