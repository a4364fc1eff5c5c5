/* test_families.c - tokenizers beyond plain GPT-2: Llama-3's and odd Split pre-tokenizers, metaspace with byte fallback,
 * SentencePiece models; ids and text against what HF and sentencepiece gave (tests/data/tokenizer); templates, the streaming
 * decoder. The compiled form is test_compiled.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "text/families.h"

static void ids_and_texts_equal_the_reference(void **state) {
    (void)state;
    for (int i = 0; i < FAMILIES; i++) {
        ida_tokenizer *t = family(i);
        check_ids(t, families[i]);
        check_texts(t, families[i]);
        ida_tokenizer_free(t);
    }
}

static void saved_file_gives_the_same_tokenizer(void **state) {
    for (int i = 0; i <= FAMILIES; i++) {
        const char *name = i < FAMILIES ? families[i] : "sp";
        ida_tokenizer *t = i < FAMILIES ? family(i) : load("sp.model"), *again = NULL;
        OK(ida_tokenizer_save(t, in_dir(*state, "tokenizer.json")));
        OK(ida_tokenizer_load(*state, &again));
        assert_true(ida_tokenizer_hash(t) == ida_tokenizer_hash(again));
        check_ids(again, name);
        if (i < FAMILIES) check_texts(again, name);
        ida_tokenizer_free(t);
        ida_tokenizer_free(again);
    }
}

static void sentencepiece_model_gives_sentencepiece_ids(void **state) {
    int64_t n;
    char *bytes = get_file(FOLDER "sp.model", &n);
    ida_tokenizer *t = load("sp.model"), *in_folder = NULL;
    check_ids(t, "sp");
    mkdir(in_dir(*state, "sp"), 0755);
    put_file(in_dir(*state, "sp/tokenizer.model"), bytes, n);
    OK(ida_tokenizer_load(in_dir(*state, "sp"), &in_folder));
    assert_true(ida_tokenizer_hash(t) == ida_tokenizer_hash(in_folder));
    assert_int_equal(ida_tokenizer_bos(t), 1);
    assert_int_equal(ida_tokenizer_eos(t), 2);
    ida_tokenizer_free(in_folder);
    ida_tokenizer_free(t);
    free(bytes);
}

/* Cutting a piece where no merge crosses gives what merging the whole gives. */
static void words_merge_as_the_whole_text_does(void **state) {
    (void)state;
    static const char *const parts[] =
        {" ", "  ",   "the", "e", "\xC3\xA9", "\xE4\xB8\xAD", "\xE2\x96\x81", "\n", "ing", "<0x41>", "\xF0\x9F\x99\x82",
         ".", "\xFF", "12"};
    for (int model = 0; model < 2; model++) {
        ida_tokenizer *t = load(model ? "sp.model" : "metaspace.json");
        uint8_t *joins = t->joins;
        assert_non_null(joins);
        for (uint64_t round = 0; round < 400; round++) {
            char s[600];
            size_t n = 0;
            for (uint64_t i = 0; i < 60; i++) {
                uint32_t w[4];
                ida_philox(5, 4, round * 64 + i, w);
                const char *p = parts[w[0] % (sizeof parts / sizeof *parts)];
                memcpy(s + n, p, strlen(p));
                n += strlen(p);
            }
            ida_ids got[2] = {{0}, {0}};
            for (int whole = 0; whole < 2; whole++) {
                ida_encoder *e = NULL;
                t->joins = whole ? NULL : joins;
                OK(ida_encoder_new(t, &e));
                OK(ida_encoder_add(e, s, n, true, &got[whole]));
                ida_encoder_free(e);
            }
            t->joins = joins;
            assert_int_equal(got[0].n, got[1].n);
            assert_memory_equal(got[0].id, got[1].id, (size_t)got[0].n * sizeof(int32_t));
            for (int whole = 0; whole < 2; whole++) ida_free(got[whole].id);
        }
        ida_tokenizer_free(t);
    }
}

/* Llama-2's family loses no byte: ill-formed ones become byte tokens. */
static void any_bytes_round_trip_through_byte_fallback(void **state) {
    (void)state;
    ida_tokenizer *t = load("metaspace.json");
    for (uint64_t round = 0; round < 500; round++) {
        char s[80], *back;
        size_t n = round % 80, m;
        int32_t *ids;
        int64_t k;
        for (size_t i = 0; i < n; i++) {
            uint32_t w[4];
            ida_philox(8, 4, round * 128 + i, w);
            s[i] = round & 1 ? (char)w[0] : " ab\xC3\xA9\xE4"[w[0] % 6];
        }
        OK(ida_tokenizer_encode(t, s, n, false, &ids, &k));
        OK(ida_tokenizer_decode(t, ids, k, false, &back, &m));
        assert_int_equal(m, n);
        assert_memory_equal(back, s, n);
        ida_ids_free(ids);
        ida_string_free(back);
    }
    ida_tokenizer_free(t);
}

static int count(const int32_t *ids, int64_t n, int64_t id) {
    int k = 0;
    for (int64_t i = 0; i < n; i++) k += ids[i] == id;
    return k;
}

static void keep_line(void *user, const char *line) { snprintf(user, 256, "%s", line); }

static void L32_exactly_one_bos(void **state) {
    (void)state;
    static const struct {
        const char *file, *bos;
    } cases[] = {{"llama3.json", "<|im_start|>"}, {"metaspace.json", "<s>"}, {"sp.model", "<s>"}};
    for (int c = 0; c < 3; c++) {
        ida_tokenizer *t = load(cases[c].file);
        int64_t bos = ida_tokenizer_bos(t), n;
        char typed[64], line[256] = "";
        int32_t *ids;
        snprintf(typed, sizeof typed, "%shello", cases[c].bos);
        assert_true(bos >= 0);
        ida_set_log(keep_line, line);
        const struct { const char *text; unsigned flags; int want; bool warned; } uses[] = {
            {"hello", 0, 0, false},
            {"hello", IDA_ENCODE_TEMPLATE, 1, false},
            {typed, IDA_ENCODE_TEMPLATE, 1, false},                       /* as text: the template's own */
            {typed, IDA_ENCODE_SPECIAL, 1, false},                        /* typed: the text's own */
            {typed, IDA_ENCODE_SPECIAL | IDA_ENCODE_TEMPLATE, 1, true},   /* both: still one, and a word about it */
            {"", IDA_ENCODE_TEMPLATE, 1, false}};
        for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
            line[0] = 0;
            OK(ida_tokenizer_encode_as(t, uses[i].text, strlen(uses[i].text), uses[i].flags, &ids, &n));
            assert_int_equal(count(ids, n, bos), uses[i].want);
            if (uses[i].want) assert_int_equal(ids[0], bos);
            assert_int_equal(line[0] != 0, uses[i].warned);
            ida_ids_free(ids);
        }
        assert_int_equal(ida_tokenizer_encode_as(t, "a", 1, 4, &ids, &n), IDA_E_ARG);
        ida_set_log(NULL, NULL);
        ida_tokenizer_free(t);
    }
}

static void decoder_holds_back_what_may_change(void **state) {
    (void)state;
    ida_tokenizer *t = load("metaspace.json");
    ida_decoder *d;
    const char *s;
    size_t n;
    const int32_t a = t->byte_id[0xE4], b = t->byte_id[0xBD], c = t->byte_id[0xA0], bad = t->byte_id[0xFF], e = t->ascii_id['e'],
                  mark = t->mark_id;
    OK(ida_decoder_create(t, false, &d));
    const int32_t whole[] = {mark, e, a, b, c};
    OK(ida_decoder_push(d, whole, 5, &s, &n));
    assert_string_equal(s, "e"); /* the blank at the start is dropped, the run of bytes may go on */
    OK(ida_decoder_push(d, &mark, 1, &s, &n));
    assert_string_equal(s, "\xE4\xBD\xA0 ");
    const int32_t broken[] = {a, b, c, bad};
    OK(ida_decoder_push(d, broken, 4, &s, &n));
    assert_int_equal(n, 0);
    OK(ida_decoder_end(d, &s, &n)); /* one ill-formed byte spoils the run, as in HF */
    assert_string_equal(s, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    OK(ida_decoder_push(d, &mark, 1, &s, &n)); /* a new text: its first blank is dropped again */
    assert_int_equal(n, 0);
    const int32_t outside[] = {e, (int32_t)ida_tokenizer_vocab_size(t)}, negative = -1;
    assert_int_equal(ida_decoder_push(d, outside, 2, &s, &n), IDA_E_ARG); /* L34 */
    assert_int_equal(ida_decoder_push(d, &negative, 1, &s, &n), IDA_E_ARG);
    OK(ida_decoder_end(d, &s, &n));
    assert_int_equal(n, 0);
    ida_decoder_free(d);
    ida_tokenizer_free(t);
}

/* As measured in HF: byte tokens overtake an unknown character that waits; joined or not, as fuse_unk says. */
static void unknown_characters_wait_for_a_known_one(void **state) {
    (void)state;
    static const struct { bool fuse; const char *text; int32_t ids[6]; int64_t n; } cases[] = {
        {true, "x\xC3\xA9" "a", {2, 3, 0, 1}, 4}, {true, "xy\xC3\xA9za", {2, 3, 0, 1}, 4}, {true, "axy", {1, 0}, 2},
        {false, "xy\xC3\xA9za", {0, 2, 3, 0, 0, 1}, 6}, {false, "\xC3\xA9x", {2, 3, 0}, 3}, {false, "axy", {1, 0, 0}, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ida_tokenizer *t = NULL;
        int32_t *ids;
        int64_t n;
        char json[512];
        snprintf(json, sizeof json,
                 "{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"unk_token\":\"<unk>\",\"byte_fallback\":true,\"fuse_unk\":%s,"
                 "\"vocab\":{\"<unk>\":0,\"a\":1,\"<0xC3>\":2,\"<0xA9>\":3},\"merges\":[]}}",
                 cases[i].fuse ? "true" : "false");
        OK(ida_tokenizer_parse(json, strlen(json), "file", &t));
        OK(ida_tokenizer_encode(t, cases[i].text, strlen(cases[i].text), false, &ids, &n));
        assert_int_equal(n, cases[i].n);
        assert_memory_equal(ids, cases[i].ids, (size_t)n * sizeof *ids);
        ida_ids_free(ids);
        ida_tokenizer_free(t);
    }
}

/* Eight times eight times ... : 2^27 bytes of one. */
static void stacked_replacements_do_not_fill_memory(void **state) {
    (void)state;
    enum { STEPS = 9 };
    static const char one[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaa\"}",
                      model[] = "\"model\":{\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,\"a\":1},\"merges\":[]}}";
    for (int steps = 1; steps <= STEPS; steps += STEPS - 1)
        for (int decoder = 0; decoder < 2; decoder++) {
            ida_buf b = {0};
            ida_tokenizer *t = NULL;
            int32_t *ids = NULL;
            int64_t n = 0;
            OK(ida_buf_addf(&b, "{%s{\"type\":\"Sequence\",\"%s\":[", decoder ? "\"decoder\":" : "\"normalizer\":",
                            decoder ? "decoders" : "normalizers"));
            for (int i = 0; i < steps; i++) OK(ida_buf_addf(&b, "%s%s", i ? "," : "", one));
            OK(ida_buf_addf(&b, decoder ? ",{\"type\":\"Fuse\"}]},%s" : "]},\"decoder\":{\"type\":\"Fuse\"},%s", model));
            ida_status st = ida_tokenizer_parse(b.data, (size_t)b.len, "file", &t), want = steps > 1 ? IDA_E_FORMAT : IDA_OK;
            if (!st) st = ida_tokenizer_encode(t, "aaaa", 4, false, &ids, &n);
            if (st != want || (st && !strstr(ida_last_error(), "32 times")))
                fail_msg("%d steps: %d, %s", steps, st, ida_last_error());
            assert_int_equal(n, st ? 0 : decoder ? 4 : 32);
            ida_ids_free(ids);
            ida_tokenizer_free(t);
            ida_buf_free(&b);
        }
}

/* ---- patterns */

static ida_status split_as(const char *behaviour, const char *pattern, const char *text, size_t n, int64_t *n_ids) {
    ida_buf b = {0};
    ida_tokenizer *t = NULL;
    int32_t *ids = NULL;
    int64_t size;
    char *good = get_file(FOLDER "trained.json", &size), *at = strstr(good, "\"pre_tokenizer\":"),
         *end = strstr(at, ",\"post_processor\"");
    assert_non_null(end);
    OK(ida_buf_add(&b, good, (size_t)(at - good)));
    OK(ida_buf_addf(&b,
                    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%"
                    "s\"},\"behavior\":\"%s\","
                    "\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}",
                    pattern, behaviour));
    OK(ida_buf_add(&b, end, strlen(end)));
    ida_status st = ida_tokenizer_parse(b.data, (size_t)b.len, "file", &t);
    if (!st) st = ida_tokenizer_encode(t, text, n, false, &ids, n_ids);
    ida_ids_free(ids);
    ida_tokenizer_free(t);
    ida_buf_free(&b);
    free(good);
    return st;
}

static ida_status split_with(const char *pattern, const char *text, size_t n, int64_t *n_ids) {
    return split_as("Isolated", pattern, text, n, n_ids);
}

static void patterns_that_cannot_run_are_refused(void **state) {
    (void)state;
    static const struct { const char *pattern; ida_status st; const char *word;
    } cases[] = {{"(a", IDA_E_FORMAT, "compiled"},
                 {"[a&&b]", IDA_E_UNSUPPORTED, "class within a class"},
                 {"[a[bc]]", IDA_E_UNSUPPORTED, "class within"},
                 {"a{1,3}+", IDA_E_UNSUPPORTED, "}+"},
                 {"a{2}?", IDA_E_UNSUPPORTED, "count"}, /* Oniguruma: twice or not at all */
                 {"a(?i)b|c", IDA_E_UNSUPPORTED, "behind the start"}, /* Oniguruma: a(?i:b|c) */
                 {"a\\\\V", IDA_E_UNSUPPORTED, "escape"},
                 {"(?R)", IDA_E_UNSUPPORTED, "group"},
                 {"(?s:a)", IDA_E_UNSUPPORTED, "option"},
                 {"(*UCP)a", IDA_E_UNSUPPORTED, "(*"},
                 {"a\\\\K", IDA_E_UNSUPPORTED, "escape"},
                 {"", IDA_E_UNSUPPORTED, "0 bytes"}};
    int64_t n;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ida_status st = split_with(cases[i].pattern, "abc", 3, &n);
        if (st != cases[i].st || !strstr(ida_last_error(), cases[i].word))
            fail_msg("%s: %d, %s", cases[i].pattern, st, ida_last_error());
    }
    char a[4000];
    memset(a, 'a', sizeof a);
    a[sizeof a - 1] = 'c';
    assert_int_equal(split_with("(?:a|aa)+$", a, sizeof a, &n), IDA_E_UNSUPPORTED); /* exponential: stopped, not endured */
    assert_non_null(strstr(ida_last_error(), "too many steps"));
    a[sizeof a - 1] = 'a';
    OK(split_with("x*", a, sizeof a, &n)); /* empty matches cut everywhere */
    assert_int_equal(n, sizeof a);
    static const struct {
        const char *pattern, *text;
        int64_t left;
    } removed[] = {                              /* what stands after the matches are taken out */
                   {"\\\\s", "\xE1\xA0\x8E", 3}, /* U+180E is no blank */
                   {"\\\\p{L}+",
                    "a\xE1\xB2\x8A"
                    "a",
                    0}, /* a letter of Unicode 16 */
                   {"\\\\P{L}+",
                    "a\xE1\xB2\x8A"
                    "a",
                    5},
                   {"\\\\pL", "\xE1\xB2\x8A", 0},
                   {"[x\\\\p{Lu}]+", "\xE1\xB2\x8A", 3}, /* a small one */
                   {"\\\\w", "\xE1\xB2\x8A_\xCC\x81", 0},
                   {"\\\\W", "\xE1\xB2\x8A", 3},
                   {"\\\\w", "\xC2\xBD\xE2\x82\x84", 3}, /* one half is of \w, the small four is not */
                   {"\\\\bab\\\\b",
                    "ab \xC2\xBD"
                    "ab",
                    3},
                   {"(?i-m:A.)", "ab", 0},
                   {"(?m:a.)", "a\n", 0},
                   {"a.", "a\n", 2},
                   {"ba{,2}", "baaab", 1},
                   {"a{,}|a{x}", "a{,}a{x}a", 1}, /* no counts */
                   {"a{1,2}?b{2,}", "aabbb", 0},
                   {"\\\\v", "\v\n", 1},
                   {"(?i)ab|c", "ABC", 0},
                   {"(?:(?i)a|b)c", "BcBC", 2},
                   {"x|(?i)(?m)a.|b", "XBA\n", 1},
                   {"\\\\u0061", "a", 0}};
    for (size_t i = 0; i < sizeof removed / sizeof *removed; i++) {
        OK(split_as("Removed", removed[i].pattern, removed[i].text, strlen(removed[i].text), &n));
        if (n != removed[i].left) fail_msg("%s leaves %d ids", removed[i].pattern, (int)n);
    }
    const char bytes[] = "ab\xFF" "ab\xC3";
    OK(split_with("b", bytes, sizeof bytes - 1, &n)); /* ill-formed bytes stay, in pieces of their own */
    assert_int_equal(n, 6);
}

/* ---- SentencePiece models that are not ours */

static void put_varint(ida_buf *b, uint64_t v) {
    for (; v >= 0x80; v >>= 7) OK(ida_buf_add(b, &(uint8_t){(uint8_t)(v | 0x80)}, 1));
    OK(ida_buf_add(b, &(uint8_t){(uint8_t)v}, 1));
}

static void put_bytes(ida_buf *b, unsigned field, const void *p, size_t n) {
    put_varint(b, field << 3 | 2);
    put_varint(b, n);
    OK(ida_buf_add(b, p, n));
}

static void put_number(ida_buf *b, unsigned field, uint64_t v) {
    put_varint(b, field << 3);
    put_varint(b, v);
}

static void put_piece(ida_buf *b, const char *s, uint64_t type) {
    ida_buf piece = {0};
    put_bytes(&piece, 1, s, strlen(s));
    put_number(&piece, 3, type);
    put_bytes(b, 1, piece.data, (size_t)piece.len);
    ida_buf_free(&piece);
}

typedef struct sp_case {
    uint64_t model, piece_type, remove_blanks;
    const char *charsmap, *second;
    ida_status want;
    const char *word;
} sp_case;

static void unsupported_sentencepiece_models_are_refused(void **state) {
    (void)state;
    static char wide[2048 + 2];
    memset(wide, 'a', sizeof wide - 1);
    const sp_case cases[] = {
        {2, 1, 0, "", "b", IDA_OK, ""},
        {2, 4, 0, "", wide, IDA_OK, ""}, /* of the user's own any length will do */
        {2, 1, 0, "", wide + 1, IDA_OK, ""},
        {2, 1, 0, "", wide, IDA_E_UNSUPPORTED, "longer than 2048"},
        {1, 1, 0, "", "b", IDA_E_UNSUPPORTED, "type 1"},
        {2, 5, 0, "", "b", IDA_E_UNSUPPORTED, "piece 2 is of type 5"},
        {2, 1, 1, "", "b", IDA_E_UNSUPPORTED, "remove_extra_whitespaces"},
        {2, 1, 0, "xx", "b", IDA_E_UNSUPPORTED, "nmt_nfkc"},
        {2, 1, 0, "", "a", IDA_E_FORMAT, "twice"},
        {2, 1, 0, "", "\xFF", IDA_E_FORMAT, "UTF-8"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const sp_case *c = &cases[i];
        ida_buf b = {0}, trainer = {0}, normal = {0};
        ida_tokenizer *t = NULL;
        put_piece(&b, "<unk>", 2);
        put_piece(&b, "a", 1);
        put_piece(&b, c->second, c->piece_type);
        put_number(&trainer, 3, c->model);
        put_bytes(&b, 2, trainer.data, (size_t)trainer.len);
        put_bytes(&normal, 1, "nmt_nfkc", 8);
        if (*c->charsmap) put_bytes(&normal, 2, c->charsmap, strlen(c->charsmap));
        put_number(&normal, 4, c->remove_blanks);
        put_bytes(&b, 3, normal.data, (size_t)normal.len);
        ida_status st = ida_tokenizer_parse(b.data, (size_t)b.len, "model", &t);
        if (st != c->want || (st && !strstr(ida_last_error(), c->word)))
            fail_msg("case %d: %d, %s", (int)i, st, ida_last_error());
        if (!st) { /* no byte tokens: what is not known is one unknown token */
            int32_t *ids;
            int64_t n;
            OK(ida_tokenizer_encode(t, "xyab", 4, false, &ids, &n));
            assert_int_equal(n, 3);
            assert_int_equal(ids[0], 0);
            ida_ids_free(ids);
        }
        ida_tokenizer_free(t);
        ida_buf_free(&b);
        ida_buf_free(&trainer);
        ida_buf_free(&normal);
    }
}

static void damaged_sentencepiece_models_are_refused_or_whole(void **state) {
    (void)state;
    int64_t n;
    char *bytes = get_file(FOLDER "sp.model", &n);
    for (int64_t cut = 1; cut < n; cut += 1 + n / 400) {
        ida_tokenizer *t = NULL;
        assert_int_not_equal(ida_tokenizer_parse(bytes, (size_t)cut, "model", &t),
                             IDA_OK); /* the trainer's part stands at the end */
        assert_null(t);
    }
    for (int64_t at = 0; at < n; at += 1 + n / 300)
        for (int bit = 0; bit < 8; bit += 3) {
            ida_tokenizer *t = NULL;
            int32_t *ids;
            int64_t k;
            bytes[at] = (char)(bytes[at] ^ 1 << bit);
            if (!ida_tokenizer_parse(bytes, (size_t)n, "model", &t)) {
                OK(ida_tokenizer_encode(t, "the state", 9, true, &ids, &k));
                for (int64_t i = 0; i < k; i++) assert_non_null(ida_tokenizer_piece(t, ids[i], NULL, NULL));
                ida_ids_free(ids);
            }
            ida_tokenizer_free(t);
            bytes[at] = (char)(bytes[at] ^ 1 << bit);
        }
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_and_texts_equal_the_reference),
        cmocka_unit_test(saved_file_gives_the_same_tokenizer),
        cmocka_unit_test(sentencepiece_model_gives_sentencepiece_ids),
        cmocka_unit_test(words_merge_as_the_whole_text_does),
        cmocka_unit_test(any_bytes_round_trip_through_byte_fallback),
        cmocka_unit_test(L32_exactly_one_bos),
        cmocka_unit_test(decoder_holds_back_what_may_change),
        cmocka_unit_test(unknown_characters_wait_for_a_known_one),
        cmocka_unit_test(stacked_replacements_do_not_fill_memory),
        cmocka_unit_test(patterns_that_cannot_run_are_refused),
        cmocka_unit_test(unsupported_sentencepiece_models_are_refused),
        cmocka_unit_test(damaged_sentencepiece_models_are_refused_or_whole),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
