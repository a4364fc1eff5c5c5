/* test_generate.c - text out of a model: stop strings, whole characters, finish reasons, exact continuation, constant memory. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "infer/emitter.h"
#include "infer/session.h"
#include "lib/heap.h"
#include "text/files.h"
#include "tiny_model.h"

#define OK(call) do { if ((call) != IDA_OK) fail_msg("%s: %s", #call, ida_last_error()); } while (0)

/* What was emitted, with a bar after each call of emit. */
typedef struct seen { char text[4096], cuts[4096]; size_t n, n_cuts; int calls, cancel_at, polls, poll_cancel_at; } seen;

static int show(void *user, const char *bytes, size_t n) {
    seen *s = user;
    if (n == 0) return ++s->polls == s->poll_cancel_at;
    assert_true(s->n + n < sizeof s->text && s->n_cuts + n + 1 < sizeof s->cuts);
    memcpy(s->text + s->n, bytes, n);
    memcpy(s->cuts + s->n_cuts, bytes, n);
    s->n += n;
    s->n_cuts += n;
    s->cuts[s->n_cuts++] = '|';
    s->text[s->n] = s->cuts[s->n_cuts] = 0;
    return ++s->calls == s->cancel_at;
}

static bool emit_pieces(const char *const *stop, int64_t n_stop, const char *const *pieces, int n, seen *s) {
    ida_emitter *e = NULL;
    memset(s, 0, sizeof *s);
    OK(ida_emitter_new(stop, n_stop, 16, show, s, &e));
    for (int i = 0; i < n; i++) ida_emitter_put(e, pieces[i], strlen(pieces[i]));
    bool stopped = ida_emitter_stopped(e);
    ida_emitter_flush(e);
    ida_emitter_free(e);
    return stopped;
}

static void L30_no_part_of_a_stop_string_is_emitted(void **state) {
    (void)state;
    const char *script[] = { "ABC", "DEF", "G", "HI", "J", "K" }, *broken[] = { "ABC", "DEF", "G", "HI", "X", "K" };
    const char *stop[] = { "DEFGHIJ" };
    seen s;
    assert_true(emit_pieces(stop, 1, script, 6, &s));
    assert_string_equal(s.cuts, "ABC|");
    assert_false(emit_pieces(stop, 1, broken, 6, &s));
    assert_string_equal(s.cuts, "ABC|DEFGHIX|K|"); /* held text comes as soon as it cannot match */
    assert_false(emit_pieces(stop, 1, script, 4, &s));
    assert_string_equal(s.cuts, "ABC|DEFGHI|"); /* and at the end */
}

static void stop_strings_are_found_wherever_they_lie(void **state) {
    (void)state;
    static const struct { const char *stop[3], *pieces[4], *text; bool stopped; } cases[] = {
        { { "aab" }, { "aa", "ab" }, "a", true },              /* overlaps itself */
        { { "STOP" }, { "xxSTOPyy" }, "xx", true },            /* inside one piece */
        { { "\n\n" }, { "a\n", "b\n", "\n" }, "a\nb", true },
        { { "b", "abc" }, { "a", "bc" }, "a", true },          /* the first to be complete */
        { { "c", "abc" }, { "xab", "c" }, "x", true },         /* the longest of those that end together */
        { { "abcd", "bc" }, { "abc", "d" }, "a", true },
        { { "x" }, { "x" }, "", true },
        { { "xyz" }, { "xy", "xy", "xy" }, "xyxyxy", false },
        { { "\xA9!" }, { "\xC3", "\xA9", "." }, "\xC3\xA9.", false } /* begins inside a character */ };
    seen s;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int n_stop = 0, n = 0;
        while (n_stop < 3 && cases[i].stop[n_stop]) n_stop++;
        while (n < 4 && cases[i].pieces[n]) n++;
        assert_int_equal(emit_pieces(cases[i].stop, n_stop, cases[i].pieces, n, &s), cases[i].stopped);
        assert_string_equal(s.text, cases[i].text);
    }
    const char *empty[] = { "a", "" };
    ida_emitter *e = NULL;
    assert_int_equal(ida_emitter_new(empty, 2, 16, show, &s, &e), IDA_E_ARG);
    assert_null(e);
}

/* Random texts over two letters, random stop strings, random cuts, against a search of the whole text. */
static void what_is_emitted_depends_on_the_bytes_only(void **state) {
    (void)state;
    uint64_t draw = 0;
    for (int c = 0; c < 3000; c++) {
        char text[40], words[3][8];
        const char *stop[3];
        size_t n = 1 + (size_t)(ida_uniform(1, IDA_STREAM_TEST, draw++) * 38), end = n, start = n;
        for (size_t i = 0; i < n; i++) text[i] = ida_uniform(1, IDA_STREAM_TEST, draw++) < 0.6 ? 'a' : 'b';
        int n_stop = (int)(ida_uniform(1, IDA_STREAM_TEST, draw++) * 4);
        for (int j = 0; j < n_stop; j++) {
            size_t m = 1 + (size_t)(ida_uniform(1, IDA_STREAM_TEST, draw++) * 6);
            for (size_t i = 0; i < m; i++) words[j][i] = ida_uniform(1, IDA_STREAM_TEST, draw++) < 0.6 ? 'a' : 'b';
            words[j][m] = 0;
            stop[j] = words[j];
            for (size_t at = 0; at + m <= n; at++) {
                if (memcmp(text + at, words[j], m) != 0) continue;
                if (at + m < end || (at + m == end && at < start)) { end = at + m; start = at; }
                break;
            }
        }
        bool found = start < n;
        seen s = {0};
        ida_emitter *e = NULL;
        OK(ida_emitter_new(stop, n_stop, 40, show, &s, &e));
        for (size_t at = 0, m; at < n; at += m) {
            m = 1 + (size_t)(ida_uniform(1, IDA_STREAM_TEST, draw++) * 5);
            if (m > n - at) m = n - at;
            ida_emitter_put(e, text + at, m);
            assert_true(s.n <= start && memcmp(s.text, text, s.n) == 0); /* at every moment, no part of the match */
        }
        assert_int_equal(ida_emitter_stopped(e), found);
        ida_emitter_flush(e);
        assert_int_equal(s.n, start);
        assert_memory_equal(s.text, text, start);
        ida_emitter_free(e);
    }
}

static void L31_a_character_split_over_pieces_comes_whole(void **state) {
    (void)state;
    static const struct { const char *pieces[6], *cuts; } cases[] = {
        { { "\xF0", "\x9F", "\x98", "\x80", "!" }, "\xF0\x9F\x98\x80|!|" },
        { { "a\xF0\x9F", "\x98\x80" }, "a|\xF0\x9F\x98\x80|" },
        { { "\xF0\x9F\x98", "\x80\xC3", "\xA9" }, "\xF0\x9F\x98\x80|\xC3\xA9|" },
        { { "\xE2\x82", "\xAC" }, "\xE2\x82\xAC|" },
        { { "ok\xF0\x9F\x98" }, "ok|\xF0\x9F\x98|" },          /* cut off at the end: as it is, no replacement mark */
        { { "\xF0\x9F", "A" }, "\xF0\x9F" "A|" },              /* sure to be invalid once A is there */
        { { "\x80", "\xFF", "\xC0\xAF" }, "\x80|\xFF|\xC0\xAF|" }, /* never valid: nothing to wait for */
        { { "\xED\xA0", "\x80" }, "\xED\xA0|\x80|" } };        /* a surrogate is not a character */
    seen s;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int n = 0;
        while (n < 6 && cases[i].pieces[n]) n++;
        emit_pieces(NULL, 0, cases[i].pieces, n, &s);
        assert_string_equal(s.cuts, cases[i].cuts);
    }
    const char *stop[] = { "\x98\x80!" }, *pieces[] = { "x\xF0\x9F\x98", "\x80", "?" };
    emit_pieces(stop, 1, pieces, 3, &s); /* held for the stop string and for the character at once */
    assert_string_equal(s.cuts, "x|\xF0\x9F\x98\x80?|");
}

/* ---------------------------------------------------------------- whole generations */

typedef struct script { ida_model *m; ida_tokenizer *t; ida_session *s; int32_t eos; } script;

/* Says: prompt 'p' -> the pieces in order, then eos, then 'z' for ever. */
static script scripted(const char *const *pieces, int n) {
    int32_t next[320];
    script x = {0};
    x.t = scripted_tokenizer(pieces, n);
    x.eos = 256 + n;
    for (int i = 0; i < 320; i++) next[i] = 'z';
    next['p'] = 256;
    for (int i = 0; i < n; i++) next[256 + i] = 257 + i;
    x.m = scripted_model(x.eos + 1, next);
    OK(ida_session_create(x.m, &x.s));
    return x;
}

static void scripted_free(script *x) {
    ida_session_free(x->s);
    ida_model_free(x->m);
    ida_tokenizer_free(x->t);
}

static ida_sample_options greedy(int64_t max_tokens) {
    ida_sample_options o;
    ida_sample_defaults(&o);
    o.temperature = 0;
    o.max_tokens = max_tokens;
    return o;
}

static void L30_L31_end_to_end_with_a_scripted_model(void **state) {
    (void)state;
    const char *pieces[] = { "ABC", "\xF0\x9F", "\x98\x80", "DEF", "G", "HI",
                             "J" }, *stop[] = { "DEFGHIJ" }, *never[] = { "DEFGHIX" };
    const int32_t prompt = 'p';
    script x = scripted(pieces, 7);
    ida_sample_options o = greedy(-1);
    int64_t n = -1;
    ida_finish f;
    seen s = {0};
    o.stop = stop;
    o.n_stop = 1;
    OK(ida_generate(x.s, x.t, &prompt, 1, &o, show, &s, &n, &f));
    assert_string_equal(s.cuts, "ABC|\xF0\x9F\x98\x80|");
    assert_int_equal(f, IDA_FINISH_STOP);
    assert_int_equal(n, 7);
    assert_int_equal(ida_session_position(x.s), 1 + n);

    ida_session_reset(x.s);
    o.stop = never;
    memset(&s, 0, sizeof s);
    OK(ida_generate(x.s, x.t, &prompt, 1, &o, show, &s, &n, &f)); /* ends by eos, which is neither counted nor appended */
    assert_string_equal(s.cuts, "ABC|\xF0\x9F\x98\x80|DEFGHIJ|");
    assert_int_equal(f, IDA_FINISH_STOP);
    assert_int_equal(n, 7);
    assert_int_equal(ida_session_position(x.s), 8);

    ida_session_reset(x.s);
    memset(&s, 0, sizeof s);
    o = greedy(10);
    o.ignore_eos = true;
    OK(ida_generate(x.s, x.t, &prompt, 1, &o, show, &s, &n, &f)); /* the eos token has no text */
    assert_string_equal(s.text, "ABC\xF0\x9F\x98\x80" "DEFGHIJzz");
    assert_int_equal(f, IDA_FINISH_LENGTH);
    assert_int_equal(n, 10);
    scripted_free(&x);
}

/* Llama-2's family: the blank at the start of a text is dropped, not the one between prompt and text; byte tokens make characters. */
static void text_of_a_metaspace_tokenizer_goes_on_from_the_prompt(void **state) {
    (void)state;
    static const char json[] =
        "{\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true},{\"id\":2,\"content\":\"</s>\",\"special\":true}],"
        "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"},\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
        "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},\"model\":{\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,\"<s>\":1,\"</s>\":2,"
        "\"<0xE4>\":3,\"<0xBD>\":4,\"<0xA0>\":5,\"\xE2\x96\x81\":6,\"a\":7,\"\xE2\x96\x81" "a\":8},\"merges\":[]}}";
    const int32_t next[] = { 2, 8, 2, 4, 5, 6, 7, 8, 3 }; /* <s> -> _a -> E4 -> BD -> A0 -> _ -> a -> _a ... */
    ida_tokenizer *t = NULL;
    ida_session *x = NULL;
    OK(ida_tokenizer_parse(json, sizeof json - 1, "file", &t));
    ida_model *m = scripted_model(9, next);
    OK(ida_session_create(m, &x));
    const int32_t bos = 1, word[] = { 1, 7 };
    ida_sample_options o = greedy(6);
    seen s = {0};
    OK(ida_generate(x, t, &bos, 1, &o, show, &s, NULL, NULL));
    assert_string_equal(s.text, "a\xE4\xBD\xA0 a");
    assert_null(strstr(s.cuts, "\xE4|"));
    memset(&s, 0, sizeof s);
    o.max_tokens = 1;
    OK(ida_generate(x, t, NULL, 0, &o, show, &s, NULL, NULL)); /* a second call goes on */
    assert_string_equal(s.text, " a");
    ida_session_reset(x);
    memset(&s, 0, sizeof s);
    OK(ida_generate(x, t, word, 2, &o, show, &s, NULL, NULL)); /* so does the text after a prompt */
    assert_string_equal(s.text, " a");
    ida_session_free(x);
    ida_model_free(m);
    ida_tokenizer_free(t);
}

static void limits_cancel_and_bad_arguments(void **state) {
    (void)state;
    const char *pieces[] = { "A", "\xC3", "\xA9", "B" };
    const int32_t prompt = 'p', bad = 100000;
    script x = scripted(pieces, 4);
    ida_sample_options o = greedy(0);
    int64_t n = -1;
    ida_finish f = IDA_FINISH_STOP;
    seen s = {0};
    OK(ida_generate(x.s, x.t, &prompt, 1, &o, show, &s, &n, &f)); /* max_tokens 0 reads the prompt only */
    assert_int_equal(f, IDA_FINISH_LENGTH);
    assert_int_equal(n, 0);
    assert_int_equal(s.calls, 0);
    assert_int_equal(ida_session_position(x.s), 1);
    o.max_tokens = 2;
    OK(ida_generate(x.s, x.t, NULL, 0, &o, show, &s, &n, &f)); /* the next call goes on; half a character comes at the end */
    assert_string_equal(s.cuts, "A|\xC3|");
    ida_session_reset(x.s);
    memset(&s, 0, sizeof s);
    s.cancel_at = 2;
    o.max_tokens = -1;
    OK(ida_generate(x.s, x.t, &prompt, 1, &o, show, &s, &n, &f));
    assert_int_equal(f, IDA_FINISH_CANCELLED);
    assert_string_equal(s.cuts, "A|\xC3\xA9|");
    assert_int_equal(n, 3);
    assert_int_equal(ida_session_position(x.s), 4);

    OK(ida_generate(x.s, x.t, NULL, 0, &o, NULL, NULL, NULL, NULL)); /* outputs are optional */
    ida_session_reset(x.s);
    assert_int_equal(ida_generate(x.s, x.t, NULL, 0, &o, show, &s, &n, &f), IDA_E_ARG);
    assert_int_equal(ida_generate(x.s, x.t, &bad, 1, &o, show, &s, &n, &f), IDA_E_ARG); /* L34 */
    o.max_tokens = -2;
    assert_int_equal(ida_generate(x.s, x.t, &prompt, 1, &o, show, &s, &n, &f), IDA_E_ARG);
    o = greedy(1);
    o.top_p = 2;
    assert_int_equal(ida_generate(x.s, x.t, &prompt, 1, &o, show, &s, &n, &f), IDA_E_ARG);
    const char *empty = "";
    o = greedy(1);
    o.stop = &empty;
    o.n_stop = 1;
    assert_int_equal(ida_generate(x.s, x.t, &prompt, 1, &o, show, &s, &n, &f), IDA_E_ARG);
    assert_int_equal(ida_session_position(x.s), 0);

    o = greedy(1);
    tensor(x.m, "model.norm.weight")[3] = NAN;
    assert_int_equal(ida_generate(x.s, x.t, &prompt, 1, &o, show, &s, &n, &f), IDA_E_NUMERIC);
    scripted_free(&x);
}

static void a_run_without_text_can_be_cancelled(void **state) {
    (void)state;
    const char *pieces[] = { "A", "B", "C", "D" };
    script x = scripted(pieces, 4);
    ida_sample_options o = greedy(-1);
    int32_t prompt[2 * IDA_SESSION_PIECE + 10];
    int64_t n = -1;
    ida_finish f = IDA_FINISH_STOP;
    for (int i = 0; i < 2 * IDA_SESSION_PIECE + 10; i++) prompt[i] = 'p';
    seen s = { .poll_cancel_at = 3 }; /* before the third piece of the prompt */
    OK(ida_generate(x.s, x.t, prompt, 2 * IDA_SESSION_PIECE + 10, &o, show, &s, &n, &f));
    assert_int_equal(f, IDA_FINISH_CANCELLED);
    assert_int_equal(n, 0);
    assert_int_equal(s.calls, 0);
    assert_int_equal(ida_session_position(x.s), 2 * IDA_SESSION_PIECE);
    ida_session_reset(x.s);
    const char *stop = "ABCDEF"; /* all text is held back */
    s = (seen){ .poll_cancel_at = 4 }; /* once for the prompt, then before each token */
    o.stop = &stop;
    o.n_stop = 1;
    OK(ida_generate(x.s, x.t, prompt, 1, &o, show, &s, &n, &f));
    assert_int_equal(f, IDA_FINISH_CANCELLED);
    assert_int_equal(n, 2);
    assert_int_equal(s.calls, 0);
    scripted_free(&x);
}

static void a_text_made_in_pieces_equals_one_made_at_once(void **state) {
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/ida_test_generate_%ld.state", (long)getpid());
    ida_tokenizer *t = scripted_tokenizer(NULL, 0);
    for (int k = 0; k < 5; k++) {
        ida_config c = tiny_config((ida_mixer_kind)k);
        c.vocab_size = 257;
        ida_model *m = random_model(&c, 21);
        ida_session *a = NULL, *b = NULL;
        int32_t prompt[40];
        random_ids(prompt, 40, 256, 2);
        OK(ida_session_create(m, &a));
        OK(ida_session_create(m, &b));
        ida_sample_options o;
        ida_sample_defaults(&o);
        o.ignore_eos = true;
        o.seed = 9;
        o.max_tokens = 60;
        seen whole = {0}, parts = {0}, other = {0};
        OK(ida_generate(a, t, prompt, 40, &o, show, &whole, NULL, NULL));
        o.max_tokens = 25;
        OK(ida_generate(b, t, prompt, 40, &o, show, &parts, NULL, NULL));
        OK(ida_session_save(b, path));
        ida_session_reset(b);
        OK(ida_session_load(b, path));
        o.max_tokens = 35;
        OK(ida_generate(b, t, NULL, 0, &o, show, &parts, NULL, NULL));
        assert_int_equal(whole.n, parts.n);
        assert_memory_equal(whole.text, parts.text, whole.n);
        assert_memory_equal(a->logits, b->logits, 257 * sizeof(float));
        ida_session_reset(b);
        o.seed = 10;
        o.max_tokens = 60;
        OK(ida_generate(b, t, prompt, 40, &o, show, &other, NULL, NULL));
        assert_true(other.n != whole.n || memcmp(other.text, whole.text, whole.n) != 0);
        ida_session_free(a);
        ida_session_free(b);
        ida_model_free(m);
    }
    unlink(path);
    ida_tokenizer_free(t);
}

static void ids_beyond_the_tokenizer_are_never_drawn(void **state) {
    (void)state;
    ida_tokenizer *t = scripted_tokenizer(NULL, 0);
    ida_config c = tiny_config(IDA_MIXER_S4D);
    c.vocab_size = 320; /* padded: ids 257.. have no text */
    ida_model *m = random_model(&c, 5);
    ida_session *s = NULL;
    const int32_t prompt = 65;
    float *head = tensor(m, "lm_head.weight");
    for (int64_t i = 257 * c.d_model; i < 320 * c.d_model; i++) head[i] *= 100; /* would win nearly always */
    OK(ida_session_create(m, &s));
    ida_sample_options o;
    ida_sample_defaults(&o);
    o.max_tokens = 200;
    o.ignore_eos = true;
    int64_t n;
    OK(ida_generate(s, t, &prompt, 1, &o, NULL, NULL, &n, NULL));
    assert_int_equal(n, 200);
    for (int i = 0; i < IDA_SESSION_TAIL; i++) assert_true(s->tail[i] < 257);
    ida_session_free(s);
    ida_model_free(m);
    ida_tokenizer_free(t);
}

/* Heap in use, looked at from inside the run. */
typedef struct watch { int64_t calls, first, last; } watch;

static int look(void *user, const char *bytes, size_t n) {
    watch *w = user;
    (void)bytes;
    (void)n;
    w->last = heap_in_use();
    if (w->calls++ == 100) w->first = w->last;
    return 0;
}

static void generation_of_20000_tokens_grows_by_0_bytes(void **state) {
    (void)state;
    ida_tokenizer *t = scripted_tokenizer(NULL, 0);
    const ida_mixer_kind kinds[] = { IDA_MIXER_INTERDOMAIN, IDA_MIXER_S4D };
    const char *stop[] = { "never, ever, in this text" };
    for (int k = 0; k < 2; k++) {
        ida_config c = tiny_config(kinds[k]);
        c.vocab_size = 257;
        c.d_model = 16;
        c.ffn_hidden = 16;
        c.state_size = 4;
        ida_model *m = random_model(&c, 31);
        ida_session *s = NULL;
        const int32_t prompt[2] = { 65, 66 };
        OK(ida_session_create(m, &s));
        ida_sample_options o;
        ida_sample_defaults(&o);
        o.max_tokens = 20000;
        o.ignore_eos = true;
        o.stop = stop;
        o.n_stop = 1;
        watch w = {0};
        OK(ida_generate(s, t, prompt, 2, &o, look, &w, NULL, NULL));
        assert_true(w.calls > 15000);
        assert_int_equal(w.last, w.first);
        ida_session_free(s);
        ida_model_free(m);
    }
    ida_tokenizer_free(t);
}

int main(int argc, char **argv) {
    (void)argc;
    heap_without_caches(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(L30_no_part_of_a_stop_string_is_emitted),
        cmocka_unit_test(stop_strings_are_found_wherever_they_lie),
        cmocka_unit_test(what_is_emitted_depends_on_the_bytes_only),
        cmocka_unit_test(L31_a_character_split_over_pieces_comes_whole),
        cmocka_unit_test(text_of_a_metaspace_tokenizer_goes_on_from_the_prompt),
        cmocka_unit_test(L30_L31_end_to_end_with_a_scripted_model),
        cmocka_unit_test(limits_cancel_and_bad_arguments),
        cmocka_unit_test(a_run_without_text_can_be_cancelled),
        cmocka_unit_test(a_text_made_in_pieces_equals_one_made_at_once),
        cmocka_unit_test(ids_beyond_the_tokenizer_are_never_drawn),
        cmocka_unit_test(generation_of_20000_tokens_grows_by_0_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
