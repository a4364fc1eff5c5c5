/* svg.c - see svg.h. Colours are the Okabe-Ito set, which stays distinct for colour-blind readers; they also differ in dash. */
#include "eval/svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 760, HEIGHT = 420, LEFT = 72, RIGHT = 24, TOP = 44, BOTTOM = 56, MAX_TICKS = 64, MAX_POINTS = 2000 };
static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d1f"};
enum { N_COLOURS = sizeof colours / sizeof *colours };

typedef struct axis {
    double lo, hi;
    bool log;
    double ticks[MAX_TICKS];
    int n_ticks;
} axis;

double ida_nice_step(double lo, double hi, int want) {
    double raw = (hi - lo) / want;
    if (!(raw > 0) || !isfinite(raw)) return 1;
    double p = pow(10, floor(log10(raw))), f = raw / p;
    return p * (f < 1.5 ? 1 : f < 3.5 ? 2 : f < 7.5 ? 5 : 10);
}

static bool usable(double v, bool log_scale) { return isfinite(v) && (!log_scale || v > 0); }

static void linear_ticks(axis *a, bool from_data) {
    if (!(a->hi > a->lo)) {
        double pad = fabs(a->lo) > 0 ? 0.05 * fabs(a->lo) : 0.5;
        a->lo -= pad;
        a->hi += pad;
    }
    double step = ida_nice_step(a->lo, a->hi, 6);
    if (from_data) { /* whole steps at both ends */
        a->lo = floor(a->lo / step + 1e-9) * step;
        a->hi = ceil(a->hi / step - 1e-9) * step;
    }
    for (double k = ceil(a->lo / step - 1e-9); k * step <= a->hi + 1e-9 * step && a->n_ticks < MAX_TICKS; k++)
        a->ticks[a->n_ticks++] = k * step;
}

static void log_ticks(axis *a) {
    static const double all[] = {1, 2, 5}, one[] = {1};
    if (!(a->hi > a->lo)) {
        a->lo /= 2;
        a->hi *= 2;
    }
    double decades = log10(a->hi) - log10(a->lo); /* the quotient could overflow */
    const double *m = decades < 3 ? all : one;
    int n = decades < 3 ? 3 : 1, every = decades > 12 ? (int)(decades / 8) : 1;
    for (double e = floor(log10(a->lo)); e <= ceil(log10(a->hi)); e += every)
        for (int i = 0; i < n && a->n_ticks < MAX_TICKS; i++) {
            double v = m[i] * pow(10, e);
            if (v >= a->lo * (1 - 1e-9) && v <= a->hi * (1 + 1e-9)) a->ticks[a->n_ticks++] = v;
        }
}

static void fit(axis *a, const ida_chart *c, bool is_x) {
    a->lo = INFINITY;
    a->hi = -INFINITY;
    a->log = is_x ? c->log_x : c->log_y;
    for (int64_t s = 0; s < c->n_series; s++)
        for (int64_t i = 0; i < c->series[s].n; i++) {
            double x = c->series[s].x[i], y = c->series[s].y[i], v = is_x ? x : y;
            if (!usable(x, c->log_x) || !usable(y, c->log_y)) continue;
            a->lo = fmin(a->lo, v);
            a->hi = fmax(a->hi, v);
        }
    if (!(a->lo <= a->hi)) a->lo = a->log ? 1 : 0, a->hi = a->log ? 10 : 1;
    if (a->log) log_ticks(a);
    else linear_ticks(a, !is_x);
}

static double place(const axis *a, double v) {
    return a->log ? (log(v) - log(a->lo)) / (log(a->hi) - log(a->lo)) : (v - a->lo) / (a->hi - a->lo);
}
static double px(const axis *a, double v) { return LEFT + place(a, v) * (WIDTH - LEFT - RIGHT); }
static double py(const axis *a, double v) { return HEIGHT - BOTTOM - place(a, v) * (HEIGHT - TOP - BOTTOM); }

static void tick_label(double v, char out[32]) {
    double a = fabs(v);
    if (a >= 1e6 && fmod(a, 1e5) < 1e-6 * a) snprintf(out, 32, "%gM", v / 1e6);
    else if (a >= 1e4 && fmod(a, 1e2) < 1e-6 * a) snprintf(out, 32, "%gk", v / 1e3);
    else if (a > 0 && a < 1e-3) snprintf(out, 32, "%.0e", v);
    else snprintf(out, 32, "%.6g", a < 1e-12 ? 0.0 : v);
}

/* Length of a valid UTF-8 character at s that XML allows, 0 = none. */
static size_t char_length(const unsigned char *s, size_t n) {
    if (s[0] < 0x80) return s[0] >= 0x20 || s[0] == '\n' || s[0] == '\t' || s[0] == '\r';
    size_t len = s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : s[0] >= 0xe0 && s[0] < 0xf0 ? 3 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : 0;
    if (len == 0 || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] >= 0x90))
        return 0;
    return s[0] == 0xef && s[1] == 0xbf && s[2] >= 0xbe ? 0 : len;
}

ida_status ida_xml_escape(ida_buf *out, const char *text, size_t n) {
    IDA_TRY(ida_buf_add(out, "", 0));
    for (size_t i = 0; i < n;) {
        size_t len = char_length((const unsigned char *)text + i, n - i);
        const char *rep = len == 0 ? "\xef\xbf\xbd" : NULL;
        if (len == 1)
            rep = text[i] == '&'    ? "&amp;"
                  : text[i] == '<'  ? "&lt;"
                  : text[i] == '>'  ? "&gt;"
                  : text[i] == '"'  ? "&quot;"
                  : text[i] == '\'' ? "&#39;"
                                    : NULL;
        IDA_TRY(rep ? ida_buf_add(out, rep, strlen(rep)) : ida_buf_add(out, text + i, len));
        i += len ? len : 1;
    }
    return IDA_OK;
}

ida_status ida_utf8_clean(ida_buf *out, const char *text, size_t n) {
    IDA_TRY(ida_buf_add(out, "", 0));
    for (size_t i = 0; i < n;) {
        size_t len = char_length((const unsigned char *)text + i, n - i);
        IDA_TRY(len ? ida_buf_add(out, text + i, len) : ida_buf_add(out, "\xef\xbf\xbd", 3));
        i += len ? len : 1;
    }
    return IDA_OK;
}

static ida_status text_at(ida_buf *out, double x, double y, const char *attrs, const char *text) {
    IDA_TRY(ida_buf_addf(out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attrs));
    IDA_TRY(ida_xml_escape(out, text, strlen(text)));
    return ida_buf_addf(out, "</text>\n");
}

static ida_status frame(ida_buf *out, const ida_chart *c, const axis *ax, const axis *ay) {
    char label[32];
    for (int i = 0; i < ay->n_ticks; i++) {
        double y = py(ay, ay->ticks[i]);
        IDA_TRY(ida_buf_addf(out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#e3e3e3\"/>\n", LEFT, WIDTH - RIGHT,
                             y, y));
        tick_label(ay->ticks[i], label);
        IDA_TRY(text_at(out, LEFT - 8, y + 4, "text-anchor=\"end\"", label));
    }
    for (int i = 0; i < ax->n_ticks; i++) {
        double x = px(ax, ax->ticks[i]);
        IDA_TRY(ida_buf_addf(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#444\"/>\n", x, x, HEIGHT - BOTTOM,
                             HEIGHT - BOTTOM + 5));
        tick_label(ax->ticks[i], label);
        IDA_TRY(text_at(out, x, HEIGHT - BOTTOM + 20, "text-anchor=\"middle\"", label));
    }
    for (int64_t i = 0; i < c->n_marks; i++)
        if (usable(c->marks_x[i], ax->log) && c->marks_x[i] >= ax->lo && c->marks_x[i] <= ax->hi)
            IDA_TRY(ida_buf_addf(out,
                                 "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#999\" stroke-dasharray=\"2 4\"/>\n",
                                 px(ax, c->marks_x[i]), px(ax, c->marks_x[i]), TOP, HEIGHT - BOTTOM));
    IDA_TRY(ida_buf_addf(out, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"#444\"/>\n", LEFT, TOP, HEIGHT - BOTTOM,
                         WIDTH - RIGHT));
    IDA_TRY(text_at(out, WIDTH / 2.0, 24, "text-anchor=\"middle\" font-size=\"16\" font-weight=\"600\"", c->title));
    IDA_TRY(text_at(out, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14, "text-anchor=\"middle\"", c->x_label));
    double mid = (TOP + HEIGHT - BOTTOM) / 2.0;
    char attrs[96];
    snprintf(attrs, sizeof attrs, "text-anchor=\"middle\" transform=\"rotate(-90 18 %.1f)\"", mid);
    return text_at(out, 18, mid, attrs, c->y_label);
}

static const char *colour_of(const ida_chart *c, int64_t i) {
    int64_t k = c->series[i].colour > 0 ? c->series[i].colour - 1 : i;
    return colours[k % N_COLOURS];
}

static ida_status curve(ida_buf *out, const ida_series *s, const char *stroke, const axis *ax, const axis *ay) {
    int64_t points = s->n > MAX_POINTS ? MAX_POINTS : s->n;
    bool pen = false, any = false;
    for (int64_t k = 0; k < points; k++) { /* thinned evenly, both ends kept */
        int64_t i = points > 1 ? k * (s->n - 1) / (points - 1) : 0;
        bool ok = usable(s->x[i], ax->log) && usable(s->y[i], ay->log);
        if (ok && !any)
            IDA_TRY(ida_buf_addf(out, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\" stroke-linejoin=\"round\"%s d=\"",
                                 stroke, s->dashed ? " stroke-dasharray=\"6 4\"" : ""));
        if (ok) IDA_TRY(ida_buf_addf(out, "%c%.1f %.1f", pen ? 'L' : 'M', px(ax, s->x[i]), py(ay, s->y[i])));
        any |= ok;
        pen = ok;
    }
    if (any) IDA_TRY(ida_buf_addf(out, "\"/>\n"));
    for (int64_t i = 0; s->marks && i < s->n; i++)
        if (usable(s->x[i], ax->log) && usable(s->y[i], ay->log))
            IDA_TRY(ida_buf_addf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", px(ax, s->x[i]), py(ay, s->y[i]),
                                 stroke));
    return IDA_OK;
}

typedef struct box { double x, y, w, h; } box;

/* How much of the curves the box would cover: places on their lines, an even number on each piece. */
static int64_t covered(const ida_chart *c, const axis *ax, const axis *ay, box b) {
    enum { PIECES = 32 };
    int64_t hits = 0;
    for (int64_t s = 0; s < c->n_series; s++) {
        const ida_series *e = &c->series[s];
        int64_t points = e->n > MAX_POINTS ? MAX_POINTS : e->n, per = points < PIECES ? PIECES : 1;
        double x0 = NAN, y0 = NAN;
        for (int64_t k = 0; k < points; k++) {
            int64_t i = points > 1 ? k * (e->n - 1) / (points - 1) : 0;
            bool ok = usable(e->x[i], ax->log) && usable(e->y[i], ay->log);
            double x = ok ? px(ax, e->x[i]) : NAN, y = ok ? py(ay, e->y[i]) : NAN;
            if (!isfinite(x0)) x0 = x, y0 = y;
            for (int64_t j = 1; j <= per; j++) { /* not finite: never inside */
                double u = x0 + (x - x0) * (double)j / (double)per, v = y0 + (y - y0) * (double)j / (double)per;
                hits += u >= b.x && u <= b.x + b.w && v >= b.y && v <= b.y + b.h;
            }
            x0 = x;
            y0 = y;
        }
    }
    return hits;
}

/* In the corner where it covers least of the curves; the upper right one first. */
static ida_status legend(ida_buf *out, const ida_chart *c, const axis *ax, const axis *ay) {
    size_t longest = 0;
    if (c->n_series == 0) return IDA_OK;
    for (int64_t i = 0; i < c->n_series; i++) longest = strlen(c->series[i].name) > longest ? strlen(c->series[i].name) : longest;
    double w = 44 + 7.2 * (double)longest, h = 20.0 * (double)c->n_series + 8;
    double right = fmax(LEFT + 6, WIDTH - RIGHT - w - 6), low = fmax(TOP + 4, HEIGHT - BOTTOM - h - 6);
    const box corners[] = {{right, TOP + 4, w, h}, {right, low, w, h}, {LEFT + 6, low, w, h}, {LEFT + 6, TOP + 4, w, h}};
    int64_t least = INT64_MAX;
    box b = corners[0];
    for (int i = 0; i < 4; i++) {
        int64_t hits = covered(c, ax, ay, corners[i]);
        if (hits < least) least = hits, b = corners[i];
    }
    IDA_TRY(ida_buf_addf(out,
                         "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"#fff\" fill-opacity=\"0.85\" "
                         "stroke=\"#ddd\"/>\n",
                         b.x, b.y, w, h));
    for (int64_t i = 0; i < c->n_series; i++) {
        double x = b.x, y = b.y + 18 + 20.0 * (double)i;
        const char *dash = c->series[i].dashed ? " stroke-dasharray=\"6 4\"" : "";
        IDA_TRY(ida_buf_addf(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" "
                             "stroke=\"%s\" stroke-width=\"2.4\"%s/>\n",
                             x + 8, x + 32, y - 4, y - 4, colour_of(c, i), dash));
        IDA_TRY(text_at(out, x + 38, y, "", c->series[i].name));
    }
    return IDA_OK;
}

ida_status ida_svg_line_chart(ida_buf *out, const ida_chart *c) {
    axis ax = {0}, ay = {0};
    fit(&ax, c, true);
    fit(&ay, c, false);
    IDA_TRY(
        ida_buf_addf(out,
                     "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" "
                     "font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#222\">\n<title>",
                     WIDTH, HEIGHT, WIDTH, HEIGHT));
    IDA_TRY(ida_xml_escape(out, c->title, strlen(c->title)));
    IDA_TRY(ida_buf_addf(out, "</title>\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", WIDTH, HEIGHT));
    IDA_TRY(frame(out, c, &ax, &ay));
    for (int64_t i = 0; i < c->n_series; i++) IDA_TRY(curve(out, &c->series[i], colour_of(c, i), &ax, &ay));
    IDA_TRY(legend(out, c, &ax, &ay));
    return ida_buf_addf(out, "</svg>\n");
}
