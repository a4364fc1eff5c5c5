/* test_svg.c - charts are well-formed for any input, ticks are round, and nothing of a label gets out as markup. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/bench.h"
#include "report/svg.h"

static char *escaped(const char *s, size_t n) {
    static ida_buf b;
    ida_buf_free(&b);
    b = (ida_buf){0};
    assert_int_equal(ida_xml_escape(&b, s, n), IDA_OK);
    return b.data;
}

static void markup_and_invalid_bytes_are_escaped(void **state) {
    (void)state;
    assert_string_equal(escaped("<a href=\"x\">&'</a>", 18), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;&lt;/a&gt;");
    assert_string_equal(escaped("\xc3\xa9\xe6\xbc\xa2\xf0\x9f\x99\x82\n", 10), "\xc3\xa9\xe6\xbc\xa2\xf0\x9f\x99\x82\n");
#define R "\xef\xbf\xbd"
    assert_string_equal(escaped("a\x01z", 3), "a" R "z");
    assert_string_equal(escaped("\0", 1), R);
    assert_string_equal(escaped("\xc3", 1), R);                 /* cut character */
    assert_string_equal(escaped("\xc0\xaf", 2), R R);           /* overlong */
    assert_string_equal(escaped("\xed\xa0\x80", 3), R R R);     /* surrogate */
    assert_string_equal(escaped("\xf4\x90\x80\x80", 4), R R R R); /* beyond U+10FFFF */
    assert_string_equal(escaped("\xef\xbf\xbe", 3), R R R);     /* XML has no U+FFFE */
    escaped("", 0);
}

static void steps_are_one_two_or_five(void **state) {
    (void)state;
    for (double span = 1e-9; span < 1e12; span *= 1.37) {
        double step = ida_nice_step(0, span, 6), m = step / pow(10, floor(log10(step) + 1e-9));
        if (!(fabs(m - 1) < 1e-6 || fabs(m - 2) < 1e-6 || fabs(m - 5) < 1e-6)) fail_msg("step %g for %g", step, span);
        assert_true(span / step > 2.5 && span / step < 13);
    }
    assert_true(ida_nice_step(3, 3, 6) > 0);
}

/* Tags open and close in order and quotes match: enough to catch what our writer could get wrong. */
static void assert_well_formed(const char *s) {
    char open[32][16];
    int depth = 0;
    for (const char *p = strchr(s, '<'); p; p = strchr(p, '<')) {
        const char *end = strchr(p, '>');
        assert_non_null(end);
        int quotes = 0;
        for (const char *q = p; q < end; q++) quotes += *q == '"';
        assert_int_equal(quotes % 2, 0);
        char name[16] = "";
        sscanf(p + 1 + (p[1] == '/'), "%15[a-z]", name);
        if (p[1] == '/') {
            assert_true(depth > 0);
            assert_string_equal(open[--depth], name);
        } else if (end[-1] != '/') {
            assert_true(depth < 32);
            memcpy(open[depth++], name, sizeof name);
        }
        p = end;
    }
    assert_int_equal(depth, 0);
}

static void charts_are_well_formed_for_any_numbers(void **state) {
    (void)state;
    static double x[5000], y[5000];
    const double odd[] = {NAN, INFINITY, -INFINITY, 0, -1, 1e308, 1e-308, 5};
    for (int i = 0; i < 5000; i++) x[i] = i, y[i] = 3 + sin(i * 0.01);
    ida_series series[] = {{.name = "a<b>&\"", .x = x, .y = y, .n = 5000},
                           {.name = "", .x = odd, .y = odd, .n = 8, .marks = true, .style = 9},
                           {.name = "none", .n = 0},
                           {.name = "one", .x = x + 1, .y = y, .n = 1, .rings = true, .style = 8}};
    for (int i = 0; i < 64; i++) {
        ida_buf b = {0};
        ida_chart c = {.title = "<t>", .x_label = "&", .y_label = "\x01", .log_x = i & 1, .log_y = i & 2,
                       .series = series + (i & 4 ? 0 : 2), .n_series = i & 8 ? 2 : 0, .marks_x = odd, .n_marks = 8,
                       .y_max = i & 16 ? 3.5 : i & 32 ? NAN : 0};
        if (i & 4) c.n_series = 4;
        assert_int_equal(ida_svg_line_chart(&b, &c), IDA_OK);
        assert_well_formed(b.data);
        assert_null(strstr(b.data, "nan"));
        assert_null(strstr(b.data, "inf"));
        assert_null(strstr(b.data, "<t>"));
        assert_true(b.len < 300000); /* 5000 points are thinned */
        ida_buf_free(&b);
    }
}

/* A curve that lies in three corners: the legend goes to the fourth, whichever it is. */
static void the_legend_goes_to_the_free_corner(void **state) {
    (void)state;
    for (int free = 0; free < 4; free++) { /* bit 0: right, bit 1: low */
        double x[4], y[4];
        int n = 0;
        const int around[] = {0, 1, 3, 2};
        for (int k = 1; k < 4; k++) { /* corners in order around the picture, from the one after the free one */
            int at = 0;
            while (around[at] != free) at++;
            int corner = around[(at + k) % 4];
            x[n] = corner & 1 ? 0.93 : 0.07;
            y[n++] = corner & 2 ? 0.1 : 0.9;
        }
        const double fx[] = {0, NAN, 0.5, NAN, 0.5, NAN, 1}, fy[] = {0.5, NAN, 0, NAN, 1, NAN, 0.5}; /* the frame */
        ida_series s[] = {{.name = "curve", .x = x, .y = y, .n = n}, {.name = "frame", .x = fx, .y = fy, .n = 7}};
        ida_chart c = {.title = "t", .x_label = "x", .y_label = "y", .series = s, .n_series = 2};
        ida_buf b = {0};
        double bx = 0, by = 0;
        assert_int_equal(ida_svg_line_chart(&b, &c), IDA_OK);
        const char *rect = strstr(strstr(b.data, "<rect") + 1, "<rect"); /* after the background */
        assert_non_null(rect);
        assert_int_equal(sscanf(rect, "<rect x=\"%lf\" y=\"%lf\"", &bx, &by), 2);
        if ((bx > 300) != (free & 1) || (by > 150) != (free >> 1)) fail_msg("legend at %g, %g with corner %d free", bx, by, free);
        ida_buf_free(&b);
    }
}

static double attribute(const char *tag, const char *name) {
    char key[32];
    snprintf(key, sizeof key, " %s=\"", name);
    const char *at = strstr(tag, key);
    if (!at || at > strchr(tag, '>')) fail_msg("no %s in %.60s", name, tag);
    return atof(at + strlen(key));
}

/* n curves that end at the heights of their numbers, each with a name of its own of `length` characters and more. */
static char *many(int n, int length, char names[][64]) {
    static ida_buf b;
    static double x[40][50], y[40][50];
    ida_series s[40] = {{0}};
    ida_buf_free(&b);
    b = (ida_buf){0};
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < 50; k++) x[i][k] = k, y[i][k] = i + 100 * exp(-0.2 * k);
        snprintf(names[i], 64, "%0*d-end", length, i);
        s[i] = (ida_series){.name = names[i], .x = x[i], .y = y[i], .n = 50};
    }
    ida_chart c = {.title = "t", .x_label = "x", .y_label = "y", .series = s, .n_series = n};
    assert_int_equal(ida_svg_line_chart(&b, &c), IDA_OK);
    assert_well_formed(b.data);
    return b.data;
}

/* Its frame is the path of the axes: "M left topV lowH right". */
static void the_legend_of_many_series_stands_beside_the_plot(void **state) {
    (void)state;
    static char names[40][64];
    for (int n = 8; n <= 32; n += 6) {
        double left, top, low, right, w, h;
        const char *svg = many(n, 40, names), *rect = strstr(strstr(svg, "<rect") + 1, "<rect");
        const char *axes = strstr(svg, "<path d=\"M");
        assert_int_equal(sscanf(strstr(svg, "viewBox"), "viewBox=\"0 0 %lf %lf\"", &w, &h), 2);
        assert_int_equal(sscanf(axes, "<path d=\"M%lf %lfV%lfH%lf\"", &left, &top, &low, &right), 4);
        double x = attribute(rect, "x"), y = attribute(rect, "y"), bw = attribute(rect, "width"), bh = attribute(rect, "height");
        assert_true(x > right && x + bw <= w && y >= top && y + bh <= low + 0.01 && low < h);
        double before = y;
        for (int i = n - 1; i >= 0; i--) { /* as the curves end: the highest first; no name is cut, each is inside the box */
            char whole[80];
            snprintf(whole, sizeof whole, ">%s<", names[i]);
            const char *name = strstr(svg, whole), *tag = name;
            assert_non_null(name);
            while (*tag != '<') tag--;
            assert_true(attribute(tag, "y") > before && attribute(tag, "y") < y + bh);
            assert_true(attribute(tag, "x") + 7.2 * (double)strlen(names[i]) < x + bw);
            before = attribute(tag, "y");
        }
    }
}

static void every_series_up_to_32_has_its_own_colour_and_dash(void **state) {
    (void)state;
    static char names[40][64];
    char seen[32][128];
    int n = 0;
    for (const char *p = many(32, 1, names); (p = strstr(p, "<path fill=\"none\" stroke=\"")); p++) {
        const char *colour = strstr(p, "stroke="), *dash = strstr(p, "stroke-dasharray="), *end = strchr(p, '>');
        snprintf(seen[n], sizeof seen[n], "%.16s %.40s", colour, dash && dash < end ? dash : "solid");
        char *d = strstr(seen[n], " d=\"M");
        if (d) *d = '\0';
        for (int i = 0; i < n; i++) assert_string_not_equal(seen[i], seen[n]);
        n++;
    }
    assert_int_equal(n, 32);
}

/* Down from above the range, out of it again, back: two pieces that meet the upper edge three times. */
static void curves_are_cut_at_the_top_of_the_range(void **state) {
    (void)state;
    const double x[] = {0, 1, 2, 3, 4, 5, 6}, y[] = {100, 1, 0, 1, 1e308, 1, 0};
    ida_series s = {.x = x, .y = y, .n = 7, .marks = true};
    ida_chart c = {.title = "t", .x_label = "x", .y_label = "y", .series = &s, .n_series = 1, .y_max = 2};
    ida_buf b = {0};
    assert_int_equal(ida_svg_line_chart(&b, &c), IDA_OK);
    const char *axes = strstr(b.data, "<path d=\"M"), *p = strstr(b.data, "<path fill=\"none\" stroke=\"#0");
    double left, top, px, py;
    assert_int_equal(sscanf(axes, "<path d=\"M%lf %lfV", &left, &top), 2);
    int moves = 0, on_edge = 0, dots = 0;
    for (p = strstr(p, " d=\"") + 4; *p != '"';) {
        int used = 0;
        char what = 0;
        assert_int_equal(sscanf(p, "%c%lf %lf%n", &what, &px, &py, &used), 3);
        moves += what == 'M';
        on_edge += fabs(py - top) < 0.06;
        assert_true(py >= top - 0.06);
        p += used;
    }
    assert_int_equal(moves, 2);
    assert_int_equal(on_edge, 3);
    for (p = b.data; (p = strstr(p, "<circle")); p++) dots++;
    assert_int_equal(dots, 5);
    assert_null(strstr(strstr(b.data, "<rect") + 1, "<rect")); /* no name: no legend */
    ida_buf_free(&b);
    const double around[] = {-1, 1, -2, 0.5}; /* without a range nothing is cut, below zero either */
    s = (ida_series){.x = x, .y = around, .n = 4, .marks = true};
    c.y_max = 0;
    assert_int_equal(ida_svg_line_chart(&b, &c), IDA_OK);
    for (p = b.data, dots = 0; (p = strstr(p, "<circle")); p++) dots++;
    assert_int_equal(dots, 4);
    ida_buf_free(&b);
}

/* Two neighbours around the edge, a twentieth of a pixel and a hair apart: the line is cut between them, not far to the left. */
static void a_curve_along_the_top_is_cut_in_its_place(void **state) {
    (void)state;
    const double x[] = {0, 1, 2, 3, 4, 5, 6}, y[] = {0, 0, 0, 2.00031, 2.000315, 1, 0};
    ida_series s = {.x = x, .y = y, .n = 7};
    ida_chart c = {.title = "t", .x_label = "x", .y_label = "y", .series = &s, .n_series = 1, .y_max = 2};
    ida_buf b = {0};
    assert_int_equal(ida_svg_line_chart(&b, &c), IDA_OK);
    double before = -1, px, py;
    int pieces = 0;
    for (const char *p = strstr(strstr(b.data, "<path fill=\"none\" stroke=\"#0"), " d=\"") + 4; *p != '"'; pieces++) {
        int used = 0;
        char what = 0;
        assert_int_equal(sscanf(p, "%c%lf %lf%n", &what, &px, &py, &used), 3);
        assert_true(px >= before);
        before = px;
        p += used;
    }
    assert_int_equal(pieces, 8); /* six points inside, two on the edge */
    ida_buf_free(&b);
}

static void medians(void **state) {
    (void)state;
    double odd[] = {9, 1, 5}, even[] = {4, 1, 3, 2}, one[] = {7};
    assert_true(ida_median(odd, 3) == 5 && ida_median(even, 4) == 2.5 && ida_median(one, 1) == 7);
    const float a[] = {1, 2, NAN}, b[] = {1, 4, 3};
    assert_true(ida_max_error(a, b, 2) == 0.5 && isinf(ida_max_error(a, b, 3)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(markup_and_invalid_bytes_are_escaped),
        cmocka_unit_test(steps_are_one_two_or_five),
        cmocka_unit_test(charts_are_well_formed_for_any_numbers),
        cmocka_unit_test(the_legend_goes_to_the_free_corner),
        cmocka_unit_test(the_legend_of_many_series_stands_beside_the_plot),
        cmocka_unit_test(every_series_up_to_32_has_its_own_colour_and_dash),
        cmocka_unit_test(curves_are_cut_at_the_top_of_the_range),
        cmocka_unit_test(a_curve_along_the_top_is_cut_in_its_place),
        cmocka_unit_test(medians),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
