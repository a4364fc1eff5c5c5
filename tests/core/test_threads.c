/* test_threads.c - the pool: every task once, nesting, many small jobs, thread counts, fork, concurrent callers. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/status.h"
#include "core/threads.h"

enum { N_TASKS = 1000 };

typedef struct job {
    atomic_int hits[N_TASKS];
    atomic_int bad_worker;
    _Atomic int64_t sum;
    int order[N_TASKS];
    int n_order;
} job;

static void count_task(void *arg, int64_t t, int worker) {
    job *j = arg;
    atomic_fetch_add(&j->hits[t], 1);
    if (worker < 0 || worker >= ida_workers()) atomic_store(&j->bad_worker, 1);
}

static void every_task_runs_once_at_every_thread_count(void **state) {
    (void)state;
    job *j = malloc(sizeof *j);
    assert_non_null(j);
    static const int counts[] = {1, 2, 3, 8, 2, 1, 17, 2};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        assert_int_equal(ida_set_threads(counts[c]), IDA_OK);
        assert_int_equal(ida_workers(), counts[c]);
        assert_int_equal(ida_get_threads(), counts[c]);
        for (int64_t n = 0; n <= N_TASKS; n += n < 5 ? 1 : 199) {
            memset(j, 0, sizeof *j);
            ida_parallel(n, count_task, j);
            for (int64_t t = 0; t < N_TASKS; t++) assert_int_equal(atomic_load(&j->hits[t]), t < n);
            assert_int_equal(atomic_load(&j->bad_worker), 0);
        }
    }
    free(j);
}

static void record_order(void *arg, int64_t t, int worker) {
    job *j = arg;
    (void)worker;
    j->order[j->n_order++] = (int)t;
}

static void one_thread_runs_tasks_in_order(void **state) {
    (void)state;
    job *j = calloc(1, sizeof *j);
    assert_non_null(j);
    assert_int_equal(ida_set_threads(1), IDA_OK);
    ida_parallel(N_TASKS, record_order, j);
    assert_int_equal(j->n_order, N_TASKS);
    for (int t = 0; t < N_TASKS; t++) assert_int_equal(j->order[t], t);
    free(j);
}

typedef struct worker_set {
    pthread_mutex_t lock;
    pthread_t ids[8];
    int n;
} worker_set;

static void note_thread(void *arg, int64_t t, int worker) {
    (void)t;
    (void)worker;
    worker_set *w = arg;
    pthread_mutex_lock(&w->lock);
    int i = 0;
    while (i < w->n && !pthread_equal(w->ids[i], pthread_self())) i++;
    if (i == w->n && w->n < 8) w->ids[w->n++] = pthread_self();
    pthread_mutex_unlock(&w->lock);
    struct timespec ms = {0, 2000000};
    nanosleep(&ms, NULL);
}

static void tasks_are_spread_over_all_threads(void **state) {
    (void)state;
    worker_set w = {.lock = PTHREAD_MUTEX_INITIALIZER};
    assert_int_equal(ida_set_threads(4), IDA_OK);
    for (int i = 0; i < 50 && w.n < 4; i++) ida_parallel(40, note_thread, &w);
    assert_int_equal(w.n, 4);
}

typedef struct flags { atomic_int done[16]; } flags;

/* The caller's own tasks are instant, so it is the first to be ready. */
static void slow_unless_caller(void *arg, int64_t t, int worker) {
    flags *f = arg;
    struct timespec ms = {0, 3000000};
    if (worker != 0) nanosleep(&ms, NULL);
    else if (t < 8) nanosleep(&(struct timespec){0, 500000}, NULL); /* lets the others take some */
    atomic_store(&f->done[t], 1);
}

static void the_call_returns_only_after_the_last_task(void **state) {
    (void)state;
    assert_int_equal(ida_set_threads(4), IDA_OK);
    for (int round = 0; round < 10; round++) {
        flags f = {0};
        ida_parallel(16, slow_unless_caller, &f);
        for (int t = 0; t < 16; t++) assert_int_equal(atomic_load(&f.done[t]), 1);
    }
}

typedef struct nested {
    job *inner;
    int outer_worker;
    atomic_int wrong;
} nested;

static void inner_task(void *arg, int64_t t, int worker) {
    nested *n = arg;
    atomic_fetch_add(&n->inner->hits[t], 1);
    if (worker != n->outer_worker) atomic_store(&n->wrong, 1);
}

static void outer_task(void *arg, int64_t t, int worker) {
    (void)t;
    nested n = {.inner = arg, .outer_worker = worker};
    ida_parallel(10, inner_task, &n);
    if (atomic_load(&n.wrong)) atomic_store(&((job *)arg)->bad_worker, 1);
    if (ida_set_threads(2) != IDA_E_ARG) atomic_store(&((job *)arg)->bad_worker, 1);
}

static void nested_call_runs_serially_with_the_same_worker(void **state) {
    (void)state;
    job *j = malloc(sizeof *j);
    assert_non_null(j);
    assert_int_equal(ida_set_threads(4), IDA_OK);
    static const int64_t outer[] = {1, 2, 100};
    for (size_t o = 0; o < 3; o++) {
        memset(j, 0, sizeof *j);
        ida_parallel(outer[o], outer_task, j);
        for (int t = 0; t < 10; t++) assert_int_equal(atomic_load(&j->hits[t]), outer[o]);
        assert_int_equal(atomic_load(&j->bad_worker), 0);
    }
    free(j);
}

static void add_task(void *arg, int64_t t, int worker) {
    (void)worker;
    ((int64_t *)arg)[t] += t + 1;
}

/* Plain (not atomic) writes by tasks, read by the caller after each job: the hand-over must order them. */
static void many_small_jobs_lose_nothing(void **state) {
    (void)state;
    assert_int_equal(ida_set_threads(3), IDA_OK);
    int64_t cells[8] = {0};
    enum { JOBS = 30000 };
    for (int i = 0; i < JOBS; i++) {
        ida_parallel(8, add_task, cells);
        for (int t = 0; t < 8; t++) assert_true(cells[t] == (int64_t)(i + 1) * (t + 1));
        if (i % 3000 == 0) usleep(500); /* lets the pool fall asleep now and then */
    }
}

static void thread_counts_out_of_range_are_refused(void **state) {
    (void)state;
    int before = ida_get_threads();
    assert_int_equal(ida_set_threads(-1), IDA_E_ARG);
    assert_int_equal(ida_set_threads(257), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "256"));
    assert_int_equal(ida_get_threads(), before);
    assert_int_equal(ida_set_threads(0), IDA_OK);
    assert_in_range(ida_get_threads(), 1, 256);
}

static void a_forked_child_has_a_working_pool(void **state) {
    (void)state;
    assert_int_equal(ida_set_threads(3), IDA_OK);
    int64_t cells[8] = {0};
    ida_parallel(8, add_task, cells);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(20);
        worker_set w = {.lock = PTHREAD_MUTEX_INITIALIZER};
        for (int i = 0; i < 100; i++) ida_parallel(8, add_task, cells);
        for (int i = 0; i < 50 && w.n < 3; i++) ida_parallel(30, note_thread, &w);
        _exit(cells[7] == 101 * 8 && w.n == 3 ? 0 : 1);
    }
    int ws;
    assert_int_equal(waitpid(pid, &ws, 0), pid);
    assert_true(WIFEXITED(ws) && WEXITSTATUS(ws) == 0);
    ida_parallel(8, add_task, cells);
    assert_true(cells[7] == 16);
}

static void *caller_thread(void *arg) {
    int64_t *cells = arg;
    for (int i = 0; i < 3000; i++) ida_parallel(8, add_task, cells);
    return NULL;
}

static void callers_on_several_threads_do_not_disturb_each_other(void **state) {
    (void)state;
    assert_int_equal(ida_set_threads(3), IDA_OK);
    int64_t cells[4][8] = {{0}};
    pthread_t t[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, caller_thread, cells[i]), 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < 4; i++)
        for (int c = 0; c < 8; c++) assert_true(cells[i][c] == 3000 * (c + 1));
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void an_idle_pool_burns_no_processor_time(void **state) {
    (void)state;
    assert_int_equal(ida_set_threads(8), IDA_OK);
    int64_t cells[8] = {0};
    ida_parallel(8, add_task, cells);
    usleep(20000);
    double before = cpu_seconds();
    usleep(200000);
    assert_true(cpu_seconds() - before < 0.02);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once_at_every_thread_count),
        cmocka_unit_test(one_thread_runs_tasks_in_order),
        cmocka_unit_test(tasks_are_spread_over_all_threads),
        cmocka_unit_test(the_call_returns_only_after_the_last_task),
        cmocka_unit_test(nested_call_runs_serially_with_the_same_worker),
        cmocka_unit_test(many_small_jobs_lose_nothing),
        cmocka_unit_test(thread_counts_out_of_range_are_refused),
        cmocka_unit_test(a_forked_child_has_a_working_pool),
        cmocka_unit_test(callers_on_several_threads_do_not_disturb_each_other),
        cmocka_unit_test(an_idle_pool_burns_no_processor_time),
    };
    return cmocka_run_group_tests_name("core/threads", tests, NULL, NULL);
}
