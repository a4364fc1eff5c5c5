/* threads.c - the thread pool. Linux futexes under C11 atomics, so a hand-off to a waiting worker costs about a microsecond
 * and TSan sees every ordering.
 *
 * One job at a time. `gate` is CLOSED or the number of pool threads inside the job; a thread enters only through an open
 * gate, and the caller leaves only when the gate is closed and empty. So the caller never waits for a thread that slept
 * through the job, and a late thread never sees a half-written job. `round` counts jobs; sleepers wait on it.
 * A second thread that calls ida_parallel while a job runs does its own tasks serially as worker 0.
 * Fork: the child starts with no pool threads and makes them anew. Do not return from a task in a forked child.
 *
 * BLAS runs inside tasks, so it must be single-threaded: OpenBLAS is told so in every thread that may call it (process-wide
 * in its pthread build, per thread in its OpenMP build). */
#include "core/threads.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/cgroup.h"
#include "core/clock.h"
#include "core/status.h"

void openblas_set_num_threads(int n);
int openblas_get_parallel(void);

enum { MAX_THREADS = 256 };

static const ida_field rows[] = {
    IDA_ROW_INT(ida_process_options, "threads", threads, 0, 0, MAX_THREADS, .help = "CPU threads",
                .note = "0 = one per core (results do not depend on it)"),
};
const ida_fields ida_process_fields = IDA_FIELDS("process", "", ida_process_options, rows);
#define CLOSED 0x80000000u
#define IDLE_SPIN_SECONDS 20e-6  /* an idle pool thread burns at most this per job before it sleeps */
#define JOIN_SPIN_SECONDS 100e-6 /* how long the caller watches for the last tasks before it sleeps */

static struct {
    pthread_mutex_t lock;      /* held by the caller for the whole of a job, and to start or stop threads */
    pthread_t threads[MAX_THREADS];
    int started;               /* pool threads that exist, without the caller */
    atomic_int n;              /* workers, the caller included; 0 = not chosen yet */
    bool at_fork;
    bool limited;              /* the system refused threads: not asked again until ida_set_threads */
    double idle_spin, join_spin;

    ida_task_fn *fn;
    void *arg;
    int64_t n_tasks;
    _Alignas(64) _Atomic int64_t next;
    _Alignas(64) _Atomic uint32_t gate;
    _Alignas(64) _Atomic uint32_t round;
    _Atomic int32_t sleepers;
    _Atomic bool stop;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .gate = CLOSED};

static pthread_mutex_t blas_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool blas_single; /* this thread has told BLAS */
static _Thread_local bool in_task;
static _Thread_local int my_worker;

static void futex_wait(_Atomic uint32_t *word, uint32_t expected) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n) { syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, n, NULL, NULL,
                                                                0); }

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Once per process unless OpenBLAS counts per thread: its pthread build restarts its own (spinning) threads at each call
 * that follows a fork. */
static void make_blas_single(void) {
    enum { PER_THREAD_BUILD = 2 }; /* OPENBLAS_OPENMP of cblas.h */
    static bool done;
    if (blas_single) return;
    pthread_mutex_lock(&blas_lock);
    if (!done || openblas_get_parallel() == PER_THREAD_BUILD) openblas_set_num_threads(1);
    done = true;
    pthread_mutex_unlock(&blas_lock);
    blas_single = true;
}

/* Watches *word until it differs from `value`, for at most `seconds`. */
static uint32_t spin_while(_Atomic uint32_t *word, uint32_t value, double seconds) {
    uint32_t v = atomic_load_explicit(word, memory_order_acquire);
    if (v != value || seconds <= 0) return v;
    double end = ida_now() + seconds;
    do {
        for (int i = 0; i < 32; i++) {
            relax();
            v = atomic_load_explicit(word, memory_order_acquire);
            if (v != value) return v;
        }
    } while (ida_now() < end);
    return v;
}

static void take_tasks(int worker) {
    ida_task_fn *fn = pool.fn;
    void *arg = pool.arg;
    int64_t n = pool.n_tasks;
    for (;;) {
        int64_t t = atomic_fetch_add_explicit(&pool.next, 1, memory_order_relaxed);
        if (t >= n) return;
        fn(arg, t, worker);
    }
}

static bool enter_gate(void) {
    uint32_t g = atomic_load_explicit(&pool.gate, memory_order_relaxed);
    while (!(g & CLOSED))
        if (atomic_compare_exchange_weak_explicit(&pool.gate, &g, g + 1, memory_order_acquire, memory_order_relaxed)) return true;
    return false;
}

static void *worker_main(void *arg) {
    my_worker = (int)(intptr_t)arg;
    in_task = true;
    make_blas_single();
    uint32_t seen = 0;
    while (!atomic_load_explicit(&pool.stop, memory_order_acquire)) {
        uint32_t r = spin_while(&pool.round, seen, pool.idle_spin);
        if (r == seen) {
            atomic_fetch_add(&pool.sleepers, 1);
            if (atomic_load(&pool.round) == seen && !atomic_load(&pool.stop)) futex_wait(&pool.round, seen);
            atomic_fetch_sub(&pool.sleepers, 1);
            continue;
        }
        seen = r;
        if (!enter_gate()) continue;
        take_tasks(my_worker);
        uint32_t before = atomic_fetch_sub_explicit(&pool.gate, 1, memory_order_release);
        if (before == (CLOSED | 1u)) futex_wake(&pool.gate, 1);
    }
    return NULL;
}

static void before_fork(void) {
    if (!in_task) pthread_mutex_lock(&pool.lock);
    pthread_mutex_lock(&blas_lock);
}

static void after_fork_parent(void) {
    pthread_mutex_unlock(&blas_lock);
    if (!in_task) pthread_mutex_unlock(&pool.lock);
}

static void after_fork_child(void) {
    pool.started = 0;
    atomic_store(&pool.sleepers, 0);
    after_fork_parent();
}

/* Signals that end or stop a run belong to the program's own threads; faults and profiling stay with the thread. */
static int spawn(pthread_t *t, int worker) {
    sigset_t block, old;
    sigfillset(&block);
    static const int keep[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGPROF};
    for (size_t i = 0; i < sizeof keep / sizeof keep[0]; i++) sigdelset(&block, keep[i]);
    pthread_sigmask(SIG_SETMASK, &block, &old);
    int e = pthread_create(t, NULL, worker_main, (void *)(intptr_t)worker);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return e;
}

/* lock held */
static int start_threads(int n) {
    if (!pool.at_fork) {
        pool.at_fork = pthread_atfork(before_fork, after_fork_parent, after_fork_child) == 0;
        bool alone = sysconf(_SC_NPROCESSORS_ONLN) == 1; /* then spinning only keeps the others from running */
        pool.idle_spin = alone ? 0.0 : IDLE_SPIN_SECONDS;
        pool.join_spin = alone ? 0.0 : JOIN_SPIN_SECONDS;
    }
    make_blas_single();
    atomic_store(&pool.stop, false);
    while (pool.started < n - 1) {
        int e = spawn(&pool.threads[pool.started], pool.started + 1);
        if (e != 0) return e;
        pool.started++;
    }
    return 0;
}

/* lock held, no job */
static void stop_threads(void) {
    atomic_store(&pool.stop, true);
    atomic_fetch_add(&pool.round, 1);
    futex_wake(&pool.round, INT_MAX);
    for (int i = 0; i < pool.started; i++) pthread_join(pool.threads[i], NULL);
    pool.started = 0;
    pool.limited = false;
}

/* Cores this process may run on: its affinity mask. */
static int affinity_cores(void) {
    for (int cpus = 1024; cpus <= (1 << 16); cpus *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        if (!set) return 1;
        size_t size = CPU_ALLOC_SIZE((size_t)cpus);
        int n = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
        CPU_FREE(set);
        if (n > 0) return n;
    }
    return 1;
}

static int default_threads(void) {
    int n = affinity_cores();
    int64_t quota = ida_cgroup_cores(IDA_CGROUP_ROOT, IDA_CGROUP_SELF);
    if (quota > 0 && quota < n) n = (int)quota;
    return n > MAX_THREADS ? MAX_THREADS : n;
}

int ida_workers(void) {
    int n = atomic_load_explicit(&pool.n, memory_order_relaxed);
    if (n > 0) return n;
    int expected = 0;
    n = default_threads();
    return atomic_compare_exchange_strong(&pool.n, &expected, n) ? n : expected;
}

int ida_get_threads(void) { return ida_workers(); }

ida_status ida_set_threads(int n) {
    IDA_FAIL_IF(n < 0 || n > MAX_THREADS, IDA_E_ARG, "threads: %d is out of range, must be 1..%d, or 0 for one per core", n,
                MAX_THREADS);
    IDA_FAIL_IF(in_task, IDA_E_ARG, "threads: cannot be changed from inside a running task");
    if (n == 0) n = default_threads();
    pthread_mutex_lock(&pool.lock);
    int before = atomic_load(&pool.n), e = 0;
    if (n != before || pool.started != n - 1) {
        stop_threads();
        e = start_threads(n);
        if (e != 0) stop_threads();
        else atomic_store(&pool.n, n);
    }
    pthread_mutex_unlock(&pool.lock);
    IDA_FAIL_IF(e != 0, IDA_E_NOMEM, "threads: cannot start %d threads: %s; ask for fewer", n, strerror(e));
    return IDA_OK;
}

static void run_serial(int64_t n_tasks, ida_task_fn *fn, void *arg, int worker) {
    bool outer = in_task;
    in_task = true;
    for (int64_t t = 0; t < n_tasks; t++) fn(arg, t, worker);
    in_task = outer;
}

/* lock held. Opens the gate, works along, closes it and waits for those inside. */
static void run_job(int64_t n_tasks, ida_task_fn *fn, void *arg) {
    pool.fn = fn;
    pool.arg = arg;
    pool.n_tasks = n_tasks;
    atomic_store_explicit(&pool.next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool.gate, 0, memory_order_release);
    atomic_fetch_add(&pool.round, 1);
    if (atomic_load(&pool.sleepers) > 0) {
        int64_t helpers = n_tasks - 1 < pool.started ? n_tasks - 1 : pool.started;
        futex_wake(&pool.round, (int)helpers);
    }
    in_task = true;
    take_tasks(0);
    in_task = false;
    uint32_t inside = atomic_fetch_or_explicit(&pool.gate, CLOSED, memory_order_acquire) | CLOSED;
    while (inside != CLOSED) {
        uint32_t now = spin_while(&pool.gate, inside, pool.join_spin);
        if (now == inside) futex_wait(&pool.gate, inside);
        inside = atomic_load_explicit(&pool.gate, memory_order_acquire);
    }
}

void ida_parallel(int64_t n_tasks, ida_task_fn *fn, void *arg) {
    if (n_tasks <= 0) return;
    if (in_task) {
        run_serial(n_tasks, fn, arg, my_worker);
        return;
    }
    int n = ida_workers();
    if (n == 1 || n_tasks == 1 || pthread_mutex_trylock(&pool.lock) != 0) {
        make_blas_single();
        run_serial(n_tasks, fn, arg, 0);
        return;
    }
    make_blas_single();
    int refused = 0, have = 0;
    if (pool.started < n - 1 && !pool.limited) {
        refused = start_threads(n);
        pool.limited = refused != 0;
        have = pool.started + 1;
    }
    run_job(n_tasks, fn, arg);
    pthread_mutex_unlock(&pool.lock);
    /* Only now: the log function may call the library. */
    if (refused != 0) ida_log("only %d of %d threads could be started (%s): the work runs slower", have, n, strerror(refused));
}
