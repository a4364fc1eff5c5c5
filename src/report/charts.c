/* charts.c - the two pictures of a report: loss by tokens, loss by position. Not here: how a chart is drawn (svg.c). */
#include <math.h>

#include "bench/bench.h"
#include "report/report.h"
#include "report/svg.h"

/* The colour with most styles left, the first of them. */
static int free_colour(const bool *used) {
    int best = 0, least = IDA_SVG_STYLES;
    for (int c = 0; c < IDA_SVG_COLOURS; c++) {
        int n = 0;
        for (int s = c; s < IDA_SVG_STYLES; s += IDA_SVG_COLOURS) n += used[s];
        if (n < least) least = n, best = c;
    }
    return best;
}

/* The colour's first dash that is left; without one any style that is left, then any of the colour. */
static int free_style(const bool *used, int colour) {
    for (int s = colour; s < IDA_SVG_STYLES; s += IDA_SVG_COLOURS)
        if (!used[s]) return s;
    for (int s = 0; s < IDA_SVG_STYLES; s++)
        if (!used[s]) return s;
    return colour;
}

void ida_report_styles(ida_report_run *runs, int64_t n) {
    bool used[IDA_SVG_STYLES] = {false};
    for (int64_t i = 0; i < n; i++) runs[i].style = 0;
    for (int64_t i = 0; i < n; i++) { /* a cell at a time, in the order of first runs */
        if (runs[i].style) continue;
        int colour = free_colour(used);
        for (int64_t k = i; k < n; k++) {
            if (k != i && !ida_report_same_cell(&runs[i], &runs[k])) continue;
            int s = free_style(used, colour);
            used[s] = true;
            runs[k].style = s + 1;
        }
    }
}

/* The y range of the loss chart. A loss falls from ln(vocabulary) in the first steps; drawn in full they squeeze all the rest. So
 * the range ends where the middle run is after 10% of its tokens, but no curve ends above it. 0 = all is shown. */
static ida_status loss_range(const ida_report_run *runs, int64_t n, double *out) {
    enum { PERCENT = 10 };
    double *at = NULL, top = -INFINITY, low = INFINITY, last = -INFINITY;
    int64_t k = 0;
    *out = 0;
    IDA_TRY(IDA_ALLOC(at, n, "chart"));
    for (int64_t i = 0; i < n; i++) {
        const ida_report_run *r = &runs[i];
        if (r->n_steps == 0) continue;
        double reached = NAN;
        for (int64_t j = 0; j < r->n_steps; j++) {
            top = fmax(top, r->step_loss[j]);
            low = fmin(low, r->step_loss[j]);
            if (isnan(reached) && r->step_tokens[j] * 100 >= (double)r->tokens * PERCENT) reached = r->step_loss[j];
        }
        last = fmax(last, r->step_loss[r->n_steps - 1]);
        if (isfinite(reached)) at[k++] = reached;
    }
    double end = k ? fmax(ida_median(at, k), last) : NAN;
    if (top - low > 1.25 * (end - low)) *out = end;
    ida_free(at);
    return IDA_OK;
}

/* Smoothed training loss, and a ring of the same colour for each validation. */
ida_status ida_report_loss_chart(ida_buf *out, const ida_report_run *runs, int64_t n) {
    ida_series *s = NULL;
    ida_chart c = {.title = "Training loss (smoothed; rings: validation)", .x_label = "tokens", .y_label = "nats per token"};
    ida_status st;
    IDA_TRY(loss_range(runs, n, &c.y_max));
    if (c.y_max > 0) c.y_label = "nats per token (the start is above the range)";
    IDA_TRY(IDA_CALLOC(s, 2 * n, "chart"));
    for (int64_t i = 0; i < n; i++) {
        const ida_report_run *r = &runs[i];
        s[i] = (ida_series){.name = r->name, .x = r->step_tokens, .y = r->step_loss, .n = r->n_steps, .style = r->style};
        s[n + i] = (ida_series){.x = r->eval_tokens, .y = r->eval_loss, .n = r->n_evals, .rings = true, .style = r->style};
    }
    c.series = s;
    c.n_series = 2 * n;
    st = ida_svg_line_chart(out, &c);
    ida_free(s);
    return st;
}

/* Middle of each bucket against its loss; guide lines at 1x, 2x, 4x ... of the first run's training length. */
ida_status ida_report_length_chart(ida_buf *out, const ida_report_run *runs, int64_t n) {
    ida_series *s = NULL;
    double *points = NULL, marks[16];
    int64_t total = 0, k = 0, n_marks = 0;
    ida_status st;
    for (int64_t i = 0; i < n; i++)
        total += (int64_t)json_array_size(json_object_get(json_object_get(runs[i].eval, "length"), "buckets"));
    IDA_TRY(IDA_CALLOC(s, n, "chart"));
    IDA_TRY_GOTO(IDA_CALLOC(points, 2 * total, "chart"));
    double *at = points;
    for (int64_t i = 0; i < n; i++) {
        const json_t *len = json_object_get(runs[i].eval, "length"), *buckets = json_object_get(len, "buckets"), *b;
        int64_t m = (int64_t)json_array_size(buckets);
        double T = 0, times = 0;
        size_t j;
        json_array_foreach(buckets, j, b) {
            double lo = NAN, hi = NAN, loss = NAN;
            ida_report_number(b, "begin", &lo);
            ida_report_number(b, "end", &hi);
            ida_report_number(b, "loss", &loss);
            at[j] = (lo + hi) / 2;
            at[m + (int64_t)j] = loss;
        }
        if (m)
            s[k++] = (ida_series){.name = runs[i].name, .x = at, .y = at + m, .n = m, .marks = m <= 64, .style = runs[i].style};
        at += 2 * m;
        if (n_marks == 0 && ida_report_number(len, "train_len", &T) && ida_report_number(len, "multiple", &times) && T > 0)
            for (double x = 1; x <= times && n_marks < 16; x *= 2) marks[n_marks++] = x * T;
    }
    ida_chart c = {.title = "Loss by position, state carried (dotted: 1x, 2x, 4x, ... the training length)",
                   .x_label = "position",
                   .y_label = "nats per token",
                   .series = s,
                   .n_series = k,
                   .marks_x = marks,
                   .n_marks = n_marks};
    st = ida_svg_line_chart(out, &c);
out:
    ida_free(points);
    ida_free(s);
    return st;
}
