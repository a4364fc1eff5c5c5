/* emitter.c - stop strings by Knuth-Morris-Pratt, one automaton each, over the stream of bytes: `matched` is the longest end of
 * the text so far that begins the stop string, so the longest of them all is exactly what has to be held back.
 * Invariant: `held` is the text not yet emitted; between calls it is at most the longest stop string and an unfinished
 * character. */
#include "infer/emitter.h"

#include <assert.h>
#include <string.h>

#include "core/mem.h"
#include "text/utf8.h"

typedef struct stop_string {
    char *text;
    int64_t n, matched;
    int64_t *fail;         /* [n]: longest proper prefix of text[0..i] that is also its end */
} stop_string;

struct ida_emitter {
    stop_string *stops;
    int64_t n_stops;
    char *held;
    int64_t n_held, cap;
    ida_text_fn *emit;
    void *user;
    bool stopped, cancelled;
};

static ida_status add_stop(stop_string *s, const char *text) {
    s->n = (int64_t)strlen(text);
    IDA_FAIL_IF(s->n == 0, IDA_E_ARG, "a stop string is empty: it would stop at once; leave it out");
    IDA_TRY(IDA_ALLOC(s->text, s->n, "stop string"));
    IDA_TRY(IDA_CALLOC(s->fail, s->n, "stop string"));
    memcpy(s->text, text, (size_t)s->n);
    for (int64_t i = 1, k = 0; i < s->n; i++) {
        while (k > 0 && s->text[i] != s->text[k]) k = s->fail[k - 1];
        if (s->text[i] == s->text[k]) k++;
        s->fail[i] = k;
    }
    return IDA_OK;
}

ida_status ida_emitter_new(const char *const *stop, int64_t n_stop, int64_t max_piece, ida_text_fn *emit, void *user,
                           ida_emitter **out) {
    ida_emitter *e = NULL;
    ida_status st = IDA_OK;
    int64_t longest = 0;
    IDA_FAIL_IF(n_stop < 0, IDA_E_ARG, "n_stop is %lld, must be at least 0", (long long)n_stop);
    IDA_FAIL_IF(n_stop > 0 && !stop, IDA_E_ARG, "stop is NULL, n_stop %lld", (long long)n_stop);
    IDA_TRY(IDA_CALLOC(e, 1, "text emitter"));
    e->emit = emit;
    e->user = user;
    IDA_TRY_GOTO(IDA_CALLOC(e->stops, n_stop, "stop strings"));
    for (; e->n_stops < n_stop; e->n_stops++) {
        if (!stop[e->n_stops]) IDA_FAIL_GOTO(IDA_E_ARG, "stop[%lld] is NULL", (long long)e->n_stops);
        st = add_stop(&e->stops[e->n_stops], stop[e->n_stops]);
        if (st != IDA_OK) { e->n_stops++; goto out; }
        if (e->stops[e->n_stops].n > longest) longest = e->stops[e->n_stops].n;
    }
    e->cap = longest + max_piece + 8;
    IDA_TRY_GOTO(IDA_ALLOC(e->held, e->cap, "text emitter"));
    *out = e;
    return IDA_OK;
out:
    ida_emitter_free(e);
    return st;
}

void ida_emitter_free(ida_emitter *e) {
    if (!e) return;
    for (int64_t i = 0; i < e->n_stops; i++) {
        ida_free(e->stops[i].text);
        ida_free(e->stops[i].fail);
    }
    ida_free(e->stops);
    ida_free(e->held);
    ida_free(e);
}

/* Emits the first n held bytes. */
static void release(ida_emitter *e, int64_t n) {
    if (n <= 0) return;
    if (!e->cancelled && e->emit && e->emit(e->user, e->held, (size_t)n)) e->cancelled = true;
    memmove(e->held, e->held + n, (size_t)(e->n_held - n));
    e->n_held -= n;
}

/* One byte into every automaton. Returns the length of the longest stop string that ends here, 0 = none. */
static int64_t advance(ida_emitter *e, char c) {
    int64_t found = 0;
    for (int64_t i = 0; i < e->n_stops; i++) {
        stop_string *s = &e->stops[i];
        while (s->matched > 0 && s->text[s->matched] != c) s->matched = s->fail[s->matched - 1];
        if (s->text[s->matched] == c) s->matched++;
        if (s->matched < s->n) continue;
        if (s->n > found) found = s->n;
        s->matched = s->fail[s->n - 1];
    }
    return found;
}

void ida_emitter_put(ida_emitter *e, const char *piece, size_t n) {
    if (e->stopped) return;
    assert(e->n_held + (int64_t)n <= e->cap);
    for (size_t i = 0; i < n; i++) {
        e->held[e->n_held++] = piece[i];
        int64_t found = advance(e, piece[i]);
        if (found == 0) continue;
        release(e, e->n_held - found);
        e->n_held = 0;
        e->stopped = true;
        return;
    }
    int64_t keep = 0;
    for (int64_t i = 0; i < e->n_stops; i++) {
        if (e->stops[i].matched > keep) keep = e->stops[i].matched;
    }
    int64_t whole = (int64_t)ida_utf8_whole(e->held, (size_t)(e->n_held - keep));
    release(e, whole);
}

void ida_emitter_poll(ida_emitter *e) {
    if (!e->cancelled && e->emit && e->emit(e->user, "", 0)) e->cancelled = true;
}

void ida_emitter_flush(ida_emitter *e) { release(e, e->n_held); }

bool ida_emitter_stopped(const ida_emitter *e) { return e->stopped; }

bool ida_emitter_cancelled(const ida_emitter *e) { return e->cancelled; }
