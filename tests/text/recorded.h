/* recorded.h - reads the lines of tests/data/tokenizer/{*.ids,*.enc,*.dec,pieces.txt}: what HF gave, see
 * tools/make_tokenizer_fixture.py. */
#ifndef TESTS_TEXT_RECORDED_H
#define TESTS_TEXT_RECORDED_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct record { int special; char text[8192]; size_t n; int32_t number[4096]; int64_t n_numbers; } record;

static inline int hex_digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

/* "[special] hex numbers..." (special: the first column, a digit); false at the end of the file. */
static inline int next_record(FILE *f, int with_special, record *r) {
    static char line[65536];
    if (!fgets(line, sizeof line, f)) return 0;
    char *save = NULL, *word = strtok_r(line, " \n", &save);
    r->special = 0;
    if (with_special) {
        r->special = word[0] - '0';
        word = strtok_r(NULL, " \n", &save);
    }
    r->n = 0;
    if (strcmp(word, "-") != 0)
        for (; word[2 * r->n]; r->n++) r->text[r->n] = (char)(hex_digit(word[2 * r->n]) << 4 | hex_digit(word[2 * r->n + 1]));
    r->n_numbers = 0;
    while ((word = strtok_r(NULL, " \n", &save))) r->number[r->n_numbers++] = (int32_t)strtol(word, NULL, 10);
    return 1;
}

#endif
