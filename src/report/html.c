/* html.c - the report page: one self-contained file, no script, no outside reference. Invariant: every text that comes
 * from a run (names, samples, options) is escaped. */
#include <math.h>
#include <string.h>

#include "core/json.h"
#include "report/report.h"
#include "report/svg.h"

static const char head[] =
    "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<title>idattn report</title>\n<style>\n"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\n"
    "h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}\n"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}\n"
    "th,td{padding:.3rem .7rem;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}\n"
    "th:first-child,td:first-child{text-align:left}svg{max-width:100%;height:auto}\n"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f6f6f6;padding:1rem;border-radius:4px}\n"
    "footer{margin-top:2rem;color:#555;font-size:.85rem}\n</style>\n<h1>Runs compared</h1>\n";

static ida_status text(ida_buf *out, const char *s) { return ida_xml_escape(out, s, strlen(s)); }

static ida_status real_cell(ida_buf *out, double v, const char *fmt_null) {
    return isfinite(v) ? ida_buf_addf(out, "<td>%.4f</td>", v) : ida_buf_addf(out, "<td>%s</td>", fmt_null);
}

static ida_status bytes_cell(ida_buf *out, int64_t n) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)n;
    int u = 0;
    for (; v >= 1024 && u < 4; u++) v /= 1024;
    return ida_buf_addf(out, u ? "<td>%.1f %s</td>" : "<td>%.0f %s</td>", v, unit[u]);
}

static bool is_best(const json_t *table, int64_t i) {
    return json_is_true(json_object_get(json_array_get(json_object_get(table, "runs"), (size_t)i), "val_best"));
}

static ida_status table_part(ida_buf *out, const ida_report_run *runs, int64_t n, const json_t *table) {
    static const char titles[] =
        "<div class=\"wide\"><table>\n<tr><th>run<th>parameters<th>validation loss<th>bits per byte<th>measured"
        "<th>tokens/s<th>state at 1K<th>state at 64K<th>loss 1x<th>loss 2x<th>loss 4x<th>loss 8x</tr>\n";
    static const char legend[] =
        "</table></div>\n<p>Loss in nats per token. Measured: how the validation loss was; losses measured in different ways "
        "do not compare. Bold: the lowest of those measured the same way. Carried: each document read once, its state carried "
        "to its end; window: in windows of so many tokens; neither scores the end of a document. In training: the last "
        "evaluation of the training run, in rows of the training length, which scores it. State: bytes that one sequence "
        "keeps after that many tokens. 1x to 8x: loss of the last training length of tokens before that multiple of it, state "
        "carried.</p>\n";
    IDA_TRY(ida_buf_addf(out, "%s", titles));
    for (int64_t i = 0; i < n; i++) {
        const ida_report_run *r = &runs[i];
        IDA_TRY(ida_buf_addf(out, "<tr><td>"));
        IDA_TRY(text(out, r->name));
        IDA_TRY(ida_buf_addf(out, "</td><td>%lld</td>", (long long)r->info.parameters));
        IDA_TRY(is_best(table, i) ? ida_buf_addf(out, "<td><strong>%.4f</strong></td>", r->val_loss)
                                  : real_cell(out, r->val_loss, "–"));
        IDA_TRY(real_cell(out, r->bits_per_byte, "–"));
        IDA_TRY(ida_buf_addf(out, "<td>%s</td>", *r->protocol ? r->protocol : "–"));
        IDA_TRY(r->tokens_per_s > 0 ? ida_buf_addf(out, "<td>%.0f</td>", r->tokens_per_s) : ida_buf_addf(out, "<td>–</td>"));
        IDA_TRY(bytes_cell(out, r->info.state_bytes + 1024 * r->info.state_bytes_per_token));
        IDA_TRY(bytes_cell(out, r->info.state_bytes + 65536 * r->info.state_bytes_per_token));
        for (int k = 0; k < IDA_REPORT_LENGTHS; k++) IDA_TRY(real_cell(out, r->at[k], "–"));
        IDA_TRY(ida_buf_addf(out, "</tr>\n"));
    }
    return ida_buf_addf(out, "%s", legend);
}

/* Cells of several seeds, if there are any. */
static ida_status cells_part(ida_buf *out, const json_t *table) {
    const json_t *cells = json_object_get(table, "cells"), *c, *seed;
    size_t i, k;
    if (json_array_size(cells) == 0) return IDA_OK;
    IDA_TRY(ida_buf_addf(out, "<h2>Seeds</h2>\n<div class=\"wide\"><table>\n<tr><th>cell<th>seeds<th>mean validation loss"
                              "<th>highest - lowest<th>measured</tr>\n"));
    json_array_foreach(cells, i, c) {
        IDA_TRY(ida_buf_addf(out, "<tr><td>"));
        IDA_TRY(text(out, json_string_value(json_object_get(c, "cell"))));
        IDA_TRY(ida_buf_addf(out, "</td><td>"));
        json_array_foreach(json_object_get(c, "seeds"), k, seed)
            IDA_TRY(ida_buf_addf(out, "%s%s", k ? ", " : "", json_string_value(seed)));
        IDA_TRY(ida_buf_addf(out, "</td>"));
        IDA_TRY(real_cell(out, json_number_value(json_object_get(c, "val_loss_mean")), "–"));
        IDA_TRY(real_cell(out, json_number_value(json_object_get(c, "val_loss_spread")), "–"));
        IDA_TRY(ida_buf_addf(out, "<td>%s</td></tr>\n", json_string_value(json_object_get(c, "val_protocol"))));
    }
    return ida_buf_addf(out, "</table></div>\n<p>Runs named alike but for a last -sN are seeds of one cell.</p>\n");
}

static ida_status samples_part(ida_buf *out, const ida_report_run *runs, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (!runs[i].sample) continue;
        IDA_TRY(ida_buf_addf(out, "<h2>Sample: "));
        IDA_TRY(text(out, runs[i].name));
        IDA_TRY(ida_buf_addf(out, "</h2>\n<pre>"));
        IDA_TRY(ida_xml_escape(out, runs[i].sample, (size_t)runs[i].sample_bytes));
        IDA_TRY(ida_buf_addf(out, "%s</pre>\n", runs[i].sample_cut ? "\n[cut]" : ""));
    }
    return IDA_OK;
}

static ida_status settings_part(ida_buf *out, const ida_report_run *runs, int64_t n) {
    IDA_TRY(ida_buf_addf(out, "<h2>Settings</h2>\n<div class=\"wide\"><table>\n<tr><th>run<th>layers<th>width<th>heads"
                              "<th>state size<th>vocabulary<th>steps<th>tokens<th>others</tr>\n"));
    for (int64_t i = 0; i < n; i++) {
        const ida_report_run *r = &runs[i];
        const ida_config *c = &r->config;
        char *options = ida_json_dump(r->options, JSON_COMPACT | JSON_REAL_PRECISION(6));
        ida_status st = ida_buf_addf(out, "<tr><td>");
        if (!st) st = text(out, r->name);
        if (!st)
            st = ida_buf_addf(out,
                              "</td><td>%lld</td><td>%lld</td><td>%lld</td><td>%lld</td><td>%lld</td><td>%lld</td><td>%lld</td>"
                              "<td style=\"white-space:normal;text-align:left\">",
                              (long long)c->n_layers, (long long)c->d_model, (long long)c->n_heads, (long long)c->state_size,
                              (long long)c->vocab_size, (long long)r->steps, (long long)r->tokens);
        if (!st) st = text(out, options ? options : "");
        if (!st) st = ida_buf_addf(out, "</td></tr>\n");
        ida_free(options);
        IDA_TRY(st);
    }
    return ida_buf_addf(out, "</table></div>\n");
}

static ida_status footer_part(ida_buf *out, const json_t *table) {
    const json_t *m = json_object_get(table, "machine");
    const char *cpu = json_string_value(json_object_get(m, "cpu")), *commit = json_string_value(json_object_get(table, "commit"));
    IDA_TRY(ida_buf_addf(out, "<footer>idattn %s", ida_version()));
    if (commit && *commit) {
        IDA_TRY(ida_buf_addf(out, ", commit "));
        IDA_TRY(text(out, commit));
    }
    IDA_TRY(ida_buf_addf(out, ". Machine: "));
    IDA_TRY(text(out, cpu ? cpu : "unknown"));
    return ida_buf_addf(out, ", %s, %d threads.</footer>\n</html>\n", ida_isa_name(), ida_get_threads());
}

ida_status ida_report_html(ida_buf *out, const ida_report_run *runs, int64_t n, const json_t *table, const char *svg_loss,
                           const char *svg_length) {
    IDA_TRY(ida_buf_addf(out, "%s", head));
    IDA_TRY(table_part(out, runs, n, table));
    IDA_TRY(cells_part(out, table));
    IDA_TRY(ida_buf_addf(out, "<h2>Loss</h2>\n"));
    IDA_TRY(ida_buf_add(out, svg_loss, strlen(svg_loss)));
    IDA_TRY(ida_buf_addf(out, "<h2>Length</h2>\n"));
    IDA_TRY(ida_buf_add(out, svg_length, strlen(svg_length)));
    IDA_TRY(samples_part(out, runs, n));
    IDA_TRY(settings_part(out, runs, n));
    return footer_part(out, table);
}
