/* svg.c - see svg.h. Colours are the Okabe-Ito set, which stays distinct for colour-blind readers, but for its yellow, which a
 * white page swallows. */
#include "report/svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* LEFT to BOTTOM: between the plot area and the picture's edges. More points than MAX_POINTS would share pixels. */
enum { PLOT_WIDTH = 664, PLOT_HEIGHT = 320, LEFT = 72, RIGHT = 24, TOP = 44, BOTTOM = 56, MAX_TICKS = 64, MAX_POINTS = 800 };
enum { ENTRY_HEIGHT = 20, SAMPLE = 36 }; /* of the legend: a line; the stroke before a name */
static const char *const colours[IDA_SVG_COLOURS] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                     "#e69f00", "#56b4e9", "#000000", "#8c6d1f"};
static const char *const dashes[IDA_SVG_STYLES / IDA_SVG_COLOURS] = {
    "", " stroke-dasharray=\"7 4\"", " stroke-dasharray=\"1.6 2.6\"", " stroke-dasharray=\"10 3 1.6 3\""};

typedef struct axis {
    double lo, hi;
    bool log;
    double ticks[MAX_TICKS];
    int n_ticks;
} axis;

typedef struct box { double x, y, w, h; } box;

typedef struct plot {
    const ida_chart *c;
    axis x, y;
    box area, legend; /* legend: w 0 = there is none */
    double width, height; /* of the picture */
} plot;

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
    if (!is_x && c->y_max > 0 && c->y_max > a->lo) a->hi = fmin(a->hi, c->y_max);
    if (a->log) log_ticks(a);
    else linear_ticks(a, !is_x);
}

static double place(const axis *a, double v) {
    return a->log ? (log(v) - log(a->lo)) / (log(a->hi) - log(a->lo)) : (v - a->lo) / (a->hi - a->lo);
}
static double px(const plot *p, double v) { return p->area.x + place(&p->x, v) * p->area.w; }
static double py(const plot *p, double v) { /* far above the area is as good as at infinity */
    return fmax(-1e6, p->area.y + (1 - place(&p->y, v)) * p->area.h);
}
static bool inside(const plot *p, double y) { return y >= p->area.y - 0.05; }

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

static ida_status text_at(ida_buf *out, double x, double y, const char *attrs, const char *text) {
    IDA_TRY(ida_buf_addf(out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attrs));
    IDA_TRY(ida_xml_escape(out, text, strlen(text)));
    return ida_buf_addf(out, "</text>\n");
}

static ida_status segment(ida_buf *out, double x1, double y1, double x2, double y2, const char *attrs) {
    return ida_buf_addf(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, x2, y1, y2, attrs);
}

static ida_status frame(ida_buf *out, const plot *p) {
    const ida_chart *c = p->c;
    double left = p->area.x, right = left + p->area.w, top = p->area.y, low = top + p->area.h;
    char label[32];
    for (int i = 0; i < p->y.n_ticks; i++) {
        double y = py(p, p->y.ticks[i]);
        IDA_TRY(segment(out, left, y, right, y, "stroke=\"#e3e3e3\""));
        tick_label(p->y.ticks[i], label);
        IDA_TRY(text_at(out, left - 8, y + 4, "text-anchor=\"end\"", label));
    }
    for (int i = 0; i < p->x.n_ticks; i++) {
        double x = px(p, p->x.ticks[i]);
        IDA_TRY(segment(out, x, low, x, low + 5, "stroke=\"#444\""));
        tick_label(p->x.ticks[i], label);
        IDA_TRY(text_at(out, x, low + 20, "text-anchor=\"middle\"", label));
    }
    for (int64_t i = 0; i < c->n_marks; i++) {
        double m = c->marks_x[i];
        if (usable(m, p->x.log) && m >= p->x.lo && m <= p->x.hi)
            IDA_TRY(segment(out, px(p, m), top, px(p, m), low, "stroke=\"#999\" stroke-dasharray=\"2 4\""));
    }
    IDA_TRY(ida_buf_addf(out, "<path d=\"M%.0f %.0fV%.0fH%.0f\" fill=\"none\" stroke=\"#444\"/>\n", left, top, low, right));
    IDA_TRY(text_at(out, (left + right) / 2, 24, "text-anchor=\"middle\" font-size=\"16\" font-weight=\"600\"", c->title));
    IDA_TRY(text_at(out, (left + right) / 2, low + 42, "text-anchor=\"middle\"", c->x_label));
    char attrs[96];
    snprintf(attrs, sizeof attrs, "text-anchor=\"middle\" transform=\"rotate(-90 18 %.1f)\"", (top + low) / 2);
    return text_at(out, 18, (top + low) / 2, attrs, c->y_label);
}

static int style_of(const ida_chart *c, int64_t i) {
    return c->series[i].style > 0 ? (c->series[i].style - 1) % IDA_SVG_STYLES : (int)(i % IDA_SVG_STYLES);
}
static const char *colour_of(int style) { return colours[style % IDA_SVG_COLOURS]; }
static const char *dash_of(int style) { return dashes[style / IDA_SVG_COLOURS]; }

/* Points of a series are thinned evenly, both ends kept. */
static int64_t n_points(const ida_series *s) { return s->n > MAX_POINTS ? MAX_POINTS : s->n; }
static int64_t point(const ida_series *s, int64_t k) {
    int64_t points = n_points(s);
    return points > 1 ? k * (s->n - 1) / (points - 1) : 0;
}

static bool on_axes(const plot *p, const ida_series *s, int64_t i) {
    return usable(s->x[i], p->x.log) && usable(s->y[i], p->y.log);
}

/* What lies above the plot area is cut off where the line crosses its edge. */
static ida_status line(ida_buf *out, const plot *p, const ida_series *s, int style) {
    double x0 = 0, y0 = 0, top = p->area.y;
    bool before = false, was_in = false, begun = false; /* a point before this one; inside the area; a path */
    for (int64_t k = 0; k < n_points(s); k++) {
        int64_t i = point(s, k);
        bool ok = on_axes(p, s, i);
        double x = ok ? px(p, s->x[i]) : 0, y = ok ? py(p, s->y[i]) : 0;
        bool in = ok && inside(p, y);
        if (in && !begun)
            IDA_TRY(ida_buf_addf(out, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\" stroke-linejoin=\"round\"%s d=\"",
                                 colour_of(style), dash_of(style)));
        if (ok && before && in != was_in) {
            double part = fmin(1, fmax(0, (top - y0) / (y - y0))); /* a point that is inside may be a hair above the edge */
            IDA_TRY(ida_buf_addf(out, "%c%.1f %.1f", in ? 'M' : 'L', x0 + (x - x0) * part, top));
        }
        if (in) IDA_TRY(ida_buf_addf(out, "%c%.1f %.1f", before ? 'L' : 'M', x, y));
        begun |= in;
        before = ok, was_in = in, x0 = x, y0 = y;
    }
    return begun ? ida_buf_addf(out, "\"/>\n") : IDA_OK;
}

static ida_status curve(ida_buf *out, const plot *p, const ida_series *s, int style) {
    if (!s->rings) IDA_TRY(line(out, p, s, style));
    for (int64_t i = 0; (s->marks || s->rings) && i < s->n; i++) {
        if (!on_axes(p, s, i) || !inside(p, py(p, s->y[i]))) continue;
        IDA_TRY(ida_buf_addf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" ", px(p, s->x[i]), py(p, s->y[i]),
                             s->rings ? 2.6 : 3.0));
        IDA_TRY(ida_buf_addf(out, s->rings ? "fill=\"#fff\" stroke=\"%s\" stroke-width=\"1.2\"/>\n" : "fill=\"%s\"/>\n",
                             colour_of(style)));
    }
    return IDA_OK;
}

/* Whether a curve goes through the box: places on its line, an even number on each piece. */
static bool covers(const plot *p, box b) {
    enum { PIECES = 32 };
    for (int64_t s = 0; s < p->c->n_series; s++) {
        const ida_series *e = &p->c->series[s];
        int64_t points = n_points(e), per = points < PIECES ? PIECES : 1;
        double x0 = NAN, y0 = NAN;
        for (int64_t k = 0; k < points; k++) {
            int64_t i = point(e, k);
            bool ok = on_axes(p, e, i);
            double x = ok ? px(p, e->x[i]) : NAN, y = ok ? py(p, e->y[i]) : NAN;
            if (!isfinite(x0)) x0 = x, y0 = y;
            for (int64_t j = 1; j <= per; j++) { /* not finite: never inside */
                double u = x0 + (x - x0) * (double)j / (double)per, v = y0 + (y - y0) * (double)j / (double)per;
                if (u >= b.x && u <= b.x + b.w && v >= b.y && v <= b.y + b.h) return true;
            }
            x0 = x;
            y0 = y;
        }
    }
    return false;
}

/* An upper bound, for the widest of the usual fonts at 12 pixels. */
static double text_width(const char *s) {
    double w = 0;
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if ((c & 0xc0) == 0x80) continue; /* counted with its first byte */
        bool small = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        w += c >= 0xe0 ? 14 : c >= 0x80 || strchr("mwMW@%&", c) ? 12 : small ? 7.7 : 9.6;
    }
    return w;
}

/* The legend takes a corner of the plot area (the upper right one first) if it is small and covers no curve there; else it stands
 * beside the area, which grows as high as the legend. */
static void lay_out(plot *p) {
    double longest = 0;
    int64_t n = 0;
    fit(&p->x, p->c, true);
    fit(&p->y, p->c, false);
    p->area = (box){LEFT, TOP, PLOT_WIDTH, PLOT_HEIGHT};
    p->width = LEFT + PLOT_WIDTH + RIGHT;
    p->height = TOP + PLOT_HEIGHT + BOTTOM;
    for (int64_t i = 0; i < p->c->n_series; i++)
        if (p->c->series[i].name) longest = fmax(longest, text_width(p->c->series[i].name)), n++;
    if (n == 0) return;
    double w = ceil(SAMPLE + 20 + longest), h = ENTRY_HEIGHT * (double)n + 8, right = LEFT + PLOT_WIDTH;
    double low = TOP + PLOT_HEIGHT - h - 6;
    const box corners[] = {
        {right - w - 6, TOP + 4, w, h}, {right - w - 6, low, w, h}, {LEFT + 6, low, w, h}, {LEFT + 6, TOP + 4, w, h}};
    for (int i = 0; i < 4 && 2 * w <= PLOT_WIDTH && 2 * h <= PLOT_HEIGHT; i++)
        if (!covers(p, corners[i])) {
            p->legend = corners[i];
            return;
        }
    p->legend = (box){right + 12, TOP, w, h};
    p->area.h = fmax(PLOT_HEIGHT, h);
    p->width = right + 12 + w + 8;
    p->height = TOP + p->area.h + BOTTOM;
}

static double last_value(const plot *p, const ida_series *s) {
    for (int64_t i = s->n - 1; i >= 0; i--)
        if (on_axes(p, s, i)) return s->y[i];
    return -INFINITY;
}

/* In the order in which the curves end, from the top. */
static ida_status legend(ida_buf *out, const plot *p) {
    int64_t *order = NULL, n = 0;
    const box b = p->legend;
    ida_status st = IDA_OK;
    if (!(b.w > 0)) return IDA_OK;
    IDA_TRY(IDA_ALLOC(order, p->c->n_series, "legend"));
    for (int64_t i = 0; i < p->c->n_series; i++) {
        if (!p->c->series[i].name) continue;
        double v = last_value(p, &p->c->series[i]);
        int64_t k = n++;
        for (; k > 0 && last_value(p, &p->c->series[order[k - 1]]) < v; k--) order[k] = order[k - 1];
        order[k] = i;
    }
    IDA_TRY_GOTO(ida_buf_addf(out,
                              "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"#fff\" stroke=\"#ddd\"/>\n",
                              b.x, b.y, b.w, b.h));
    for (int64_t k = 0; k < n; k++) {
        int style = style_of(p->c, order[k]);
        double y = b.y + 18 + ENTRY_HEIGHT * (double)k;
        char attrs[96];
        snprintf(attrs, sizeof attrs, "stroke=\"%s\" stroke-width=\"2.4\"%s", colour_of(style), dash_of(style));
        IDA_TRY_GOTO(segment(out, b.x + 8, y - 4, b.x + 8 + SAMPLE, y - 4, attrs));
        IDA_TRY_GOTO(text_at(out, b.x + 14 + SAMPLE, y, "", p->c->series[order[k]].name));
    }
out:
    ida_free(order);
    return st;
}

ida_status ida_svg_line_chart(ida_buf *out, const ida_chart *c) {
    plot p = {.c = c};
    lay_out(&p);
    IDA_TRY(ida_buf_addf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\" "
        "font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#222\">\n<title>",
        p.width, p.height, p.width, p.height));
    IDA_TRY(ida_xml_escape(out, c->title, strlen(c->title)));
    IDA_TRY(ida_buf_addf(out, "</title>\n<rect width=\"%.0f\" height=\"%.0f\" fill=\"#fff\"/>\n", p.width, p.height));
    IDA_TRY(frame(out, &p));
    for (int64_t i = 0; i < c->n_series; i++) IDA_TRY(curve(out, &p, &c->series[i], style_of(c, i)));
    IDA_TRY(legend(out, &p));
    return ida_buf_addf(out, "</svg>\n");
}
