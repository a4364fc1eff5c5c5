/* report.h - finished runs as the report shows them; between report.c (reading, table, files), report_charts.c (the pictures) and
 * report_html.c (the page). */
#ifndef IDA_EVAL_REPORT_H
#define IDA_EVAL_REPORT_H

#include "idattn/eval.h"
#include "core/json.h"
#include "core/mem.h"

enum { IDA_REPORT_LENGTHS = 4 };

typedef struct ida_report_run {
    const char *path;
    char *name;   /* last part of the path; bytes that are not UTF-8 are U+FFFD, control characters blanks */
    int64_t cell; /* "NAME-s42" is seed 42 of the cell NAME: bytes of NAME; 0 = the name ends otherwise */
    int style;    /* in the charts (ida_series) */
    ida_config config;
    ida_model_info info;
    json_t *options; /* of trainer_state.json; NULL = not there */
    json_t *eval;    /* eval.json; NULL = not there */
    char *sample;    /* sample.txt; NULL = not there */
    int64_t sample_bytes;
    bool sample_cut; /* the file has more */
    double *step_tokens, *step_loss; /* training, smoothed */
    int64_t n_steps, cap_tokens, cap_loss;
    double *eval_tokens, *eval_loss; /* on the validation set while training */
    int64_t n_evals, cap_eval_tokens, cap_eval_loss;
    int64_t steps, tokens;                 /* done */
    double tokens_per_s;                   /* median over steps; 0 = not known */
    char protocol[64]; /* how val_loss was measured: "carried", "window W, stride S", "in training"; "" = it was not */
    double val_loss, bits_per_byte;
    double at[IDA_REPORT_LENGTHS]; /* loss at 1, 2, 4, 8 training lengths; NaN = not measured */
} ida_report_run;

/* Runs that differ in the seed alone, by their names. */
bool ida_report_same_cell(const ida_report_run *a, const ida_report_run *b);
/* Whether o has a number of that name that a run can have (within 1e18); *out is left as it is without one. */
bool ida_report_number(const json_t *o, const char *key, double *out);
/* A style for each run: seeds of one cell have one colour, and no two runs share colour and dash while there are styles left. */
void ida_report_styles(ida_report_run *runs, int64_t n);
ida_status ida_report_loss_chart(ida_buf *out, const ida_report_run *runs, int64_t n);
ida_status ida_report_length_chart(ida_buf *out, const ida_report_run *runs, int64_t n);
/* The table as JSON (also what ida_report returns). New reference; NULL on out of memory. */
json_t *ida_report_table(const ida_report_run *runs, int64_t n);
/* The page. svg_*: picture text, put in as it is. */
ida_status ida_report_html(ida_buf *out, const ida_report_run *runs, int64_t n, const json_t *table, const char *svg_loss,
                           const char *svg_length);

#endif
