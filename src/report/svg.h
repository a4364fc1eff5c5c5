/* svg.h - line charts as self-contained SVG text: axes with round ticks, legend, optional logarithmic axes.
 * Not here: where the numbers come from. Invariant: the text is well-formed XML for any input (labels are escaped, points that
 * are not finite, or not positive on a logarithmic axis, are left out); the legend never lies on a curve. */
#ifndef IDA_EVAL_SVG_H
#define IDA_EVAL_SVG_H

#include "core/mem.h"

enum { IDA_SVG_COLOURS = 8, IDA_SVG_STYLES = 32 };

typedef struct ida_series {
    const char *name;    /* in the legend; NULL = not there */
    const double *x, *y; /* [n] */
    int64_t n;
    bool marks, rings; /* a dot at each point; a ring at each point and no line */
    int style;         /* 1 + colour + IDA_SVG_COLOURS * dash, up to IDA_SVG_STYLES; 0 = by its place in the order */
} ida_series;

typedef struct ida_chart {
    const char *title, *x_label, *y_label;
    bool log_x, log_y;
    double y_max; /* curves end at the top of the plot, here or a little above; 0 = all of them is shown */
    const ida_series *series;
    int64_t n_series;
    const double *marks_x; /* vertical guide lines; may be NULL */
    int64_t n_marks;
} ida_chart;

ida_status ida_svg_line_chart(ida_buf *out, const ida_chart *c);
/* Appends text with & < > " ' escaped; control characters that XML forbids and invalid UTF-8 become U+FFFD. */
ida_status ida_xml_escape(ida_buf *out, const char *text, size_t n);
/* A round step (1, 2 or 5 times a power of ten) that cuts [lo, hi] into about `want` pieces. */
double ida_nice_step(double lo, double hi, int want);

#endif
