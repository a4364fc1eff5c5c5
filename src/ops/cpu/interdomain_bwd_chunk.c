/* interdomain_bwd_chunk.c - the backward of one chunk of the mixer core (docs/method.md section 5, "One table"; notation of
 * mixer.h). Not the walk over chunks: interdomain_bwd.c. A chunk's backward has a part that needs only the state before it
 * (bwd_local) and a part that needs the gradient of the state after it (bwd_state); between them stands a scan over chunks.
 *
 * Complex rows are pairs of reals here, so every product is a real one. Forward: T = S F~ + Q X~_k, a = E T, conj(c) = a gg,
 * B = conj(c E), P = tril(B F~^T), o = P V + B X~_v. Backward:
 *     dP = tril(dO V^T)            dV = P^T dO              dB = dP F~ + dO X~_v^T
 *     dF~ = dP^T B                 dX~_v = dO^T B           dconj(c) = E dB
 *     da = dconj(c) gg             dgg = a^T dconj(c)       dT = conj(E) da
 *     dS = tril(dT F~^T)           dF~ += S^T dT            dQ = dS K + dT X~_k^T
 *     dX~_k = Q^T dT               dK = dS^T Q              dX^ = conj(Lam^e) dX'
 *     dZ += F~ dX^                 dF~ += Z dX^^T           dX~ += dX^
 * Gradients of Lam and Bbar are moments of these over the exponents, in fp32 within the chunk. Invariant: everything but the
 * dQ, dK, dV rows of the chunk goes to the buffers given; no state is kept between calls. */
#include "ops/cpu/interdomain_bwd.h"

int64_t IDA_CPU(bwd_work_layout)(bwd_work *w, float *at, const mix_dims *n) {
    const int64_t cc = n->rows * n->ldc, cm = n->rows * n->ldm, cr = n->rows * n->ldr, cd = n->rows * n->ldd;
    struct { float **p; int64_t size;
    } list[] = {
        {&w->kt, n->rp * n->ldc},
        {&w->vt, n->dp * n->ldc},
        {&w->k, cr},
        {&w->q, cr},
        {&w->o, cd},
        {&w->s, cc},
        {&w->p, cc},
        {&w->dp, cc},
        {&w->t, cm},
        {&w->b, cm},
        {&w->db, cm},
        {&w->df, cm},
        {&w->dgg, n->m2 * n->ldm},
        {&w->dq, cr},
        {&w->xk, n->m2 * n->ldr},
        {&w->xv, n->m2 * n->ldd},
    };
    int64_t total = 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        *list[i].p = at ? at + total : NULL;
        total += list[i].size;
    }
    return total;
}

void IDA_CPU(bwd_pack)(const bwd_work *w, const bwd_call *c, int64_t g, int64_t token, int64_t rows) {
    const ida_interdomain_args *a = c->a;
    const mix_dims *n = &c->plan.n;
    smm_pack_t(w->kt, n->ldc, ida_act_real(a->k) + (token * a->g + g) * a->r, a->g * a->r, rows, a->r, smm_pad(rows));
    smm_pack_t(w->vt, n->ldc, ida_act_real(a->v) + (token * a->g + g) * a->d, a->g * a->d, rows, a->d, smm_pad(rows));
}

void IDA_CPU(bwd_prefetch)(const bwd_call *c, int64_t g, int64_t token, int64_t rows, const float *x) {
    const ida_interdomain_args *a = c->a;
    const mix_dims *n = &c->plan.n;
    const int64_t head = token * a->h + g * (a->h / a->g);
    SMM_PREFETCH(ida_act_real(a->k) + (token * a->g + g) * a->r, a->g * a->r, rows, a->r, 0);
    SMM_PREFETCH(ida_act_real(a->v) + (token * a->g + g) * a->d, a->g * a->d, rows, a->d, 0);
    if (!x) return;
    SMM_PREFETCH(x, n->ldm, n->wp, n->m2, 0);
    SMM_PREFETCH(ida_act_real(a->q) + head * a->r, a->h * a->r, rows, a->r, 0);
    SMM_PREFETCH(ida_act_real(c->gr->dout) + head * a->d, a->h * a->d, rows, a->d, 0);
}

/* moment (+)= sum_i (i - k) times the product named below, and dx_i <- dx_i E_i or dx_i conj(E_i):
 * outer: x = B, dx = dB, moment of B conj(dB), then times E; inner: x = a, dx = da, moment of conj(a) da, then times conj(E). */
static void exponent_moment(float *moment, const float *x, float *dx, const mix_table *t, const mix_dims *n, int64_t rows,
                            bool inner, bool add) {
    const int64_t origin = bwd_origin(t, rows);
    const float sign = inner ? -1.0f : 1.0f;
    for (int64_t m = 0; m < n->mp; m += IDA_VL) {
        vf sr = add ? vf_load(moment + m) : vf_zero(), si = add ? vf_load(moment + n->mp + m) : vf_zero();
        for (int64_t i = 0; i < rows; i++) {
            const int64_t re = i * n->ldm + m, im = re + n->mp;
            const vf xr = vf_load(x + re), xi = vf_load(x + im), gr = vf_load(dx + re), gi = vf_load(dx + im);
            const vf er = vf_load(t->pw + re), ei = vf_load(t->pw + im) * sign, w = vf_set1((float)(i - origin));
            sr = w * (xr * gr + xi * gi) + sr;
            si = w * (sign * (xi * gr - xr * gi)) + si;
            vf_store(dx + re, gr * er - gi * ei);
            vf_store(dx + im, gi * er + gr * ei);
        }
        vf_store(moment + m, sr);
        vf_store(moment + n->mp + m, si);
    }
}

/* order0 = sum_j conj(Lam^(c-j)) dF~_j, order1 = sum_j (k-j) conj(Lam^(c-j)) dF~_j. */
static void table_moments(float *order0, float *order1, const float *df, const mix_table *t, const mix_dims *n, int64_t rows) {
    const int64_t origin = bwd_origin(t, rows);
    for (int64_t m = 0; m < n->mp; m += IDA_VL) {
        vf ar = vf_zero(), ai = ar, br = ar, bi = ar;
        for (int64_t j = 0; j < rows; j++) {
            const float *u = t->pw + (2 * t->centre - j) * n->ldm + m, *d = df + j * n->ldm + m;
            const vf ur = vf_load(u), ui = vf_load(u + n->mp), dr = vf_load(d), di = vf_load(d + n->mp);
            const vf re = ur * dr + ui * di, im = ur * di - ui * dr, w = vf_set1((float)(origin - j));
            ar += re;
            ai += im;
            br = w * re + br;
            bi = w * im + bi;
        }
        vf_store(order0 + m, ar);
        vf_store(order0 + n->mp + m, ai);
        vf_store(order1 + m, br);
        vf_store(order1 + n->mp + m, bi);
    }
}

/* dgg [m2, ldm] -> dG [m, m2]. gg = [Gr, -Gi; sign Gi, sign Gr], sign = +1 hermitian, -1 bilinear. */
static void fold_dgg(float *g, const float *dgg, const mix_dims *n, bool hermitian) {
    const float sign = hermitian ? 1.0f : -1.0f;
    for (int64_t i = 0; i < n->m; i++) {
        const float *up = dgg + i * n->ldm, *low = dgg + (n->mp + i) * n->ldm;
        for (int64_t k = 0; k < n->mp; k += IDA_VL) {
            vf_store(g + i * n->m2 + k, vf_load(up + k) + sign * vf_load(low + n->mp + k));
            vf_store(g + i * n->m2 + n->mp + k, sign * vf_load(low + k) - vf_load(up + n->mp + k));
        }
    }
}

/* One head of one chunk. x NULL = zero state; loc NULL = dX~ not wanted. add: dK, dV, dX~, dF~, dgg and the moment add up over
 * the heads of a group. */
static void head_local(const bwd_work *w, const bwd_call *c, const mix_table *t, int64_t h, int64_t token, int64_t rows,
                       const float *x, float *loc, const bwd_record *rec, const bwd_kv *kv, bool add) {
    const ida_interdomain_args *a = c->a;
    const mix_dims *n = &c->plan.n;
    const int64_t pad = mix_rows_mr(rows), ldm = n->ldm, ldc = n->ldc, ldr = n->ldr, ldd = n->ldd;
    const int with_x = x ? 2 : 1;
    const float *xv = x ? x + n->rp * ldm : NULL;
    smm_term u[2];
    smm_pack(w->q, ldr, ida_act_real(a->q) + (token * a->h + h) * a->r, a->h * a->r, rows, a->r, pad);
    smm_pack(w->o, ldd, ida_act_real(c->gr->dout) + (token * a->h + h) * a->d, a->h * a->d, rows, a->d, pad);
    /* forward again: S, a, B, P */
    u[0] = mix_term(w->q, ldr, 1, w->kt, ldc, a->r, SMM_FULL);
    smm_lower(w->s, ldc, pad, u, 1);
    u[0] = mix_term(w->s, ldc, 1, t->f, ldm, rows, SMM_LOWER);
    u[1] = mix_term(w->q, ldr, 1, x, ldm, a->r, SMM_FULL);
    smm(w->t, ldm, pad, n->m2, false, u, with_x);
    mix_mul_rows(w->t, ldm, t->pw, ldm, rows, n->mp, false);
    u[0] = mix_term(w->t, ldm, 1, t->gg, ldm, n->m2, SMM_FULL);
    smm(w->b, ldm, pad, n->m2, false, u, 1);
    mix_mul_rows(w->b, ldm, t->pw, ldm, rows, n->mp, true);
    u[0] = mix_term(w->b, ldm, 1, t->ft, c->plan.ldt, n->m2, SMM_FULL);
    smm_lower(w->p, ldc, pad, u, 1);
    /* o = P V + B X~_v;  P = tril(B F~^T) */
    u[0] = mix_term(w->o, ldd, 1, w->vt, ldc, a->d, SMM_FULL);
    smm_lower(w->dp, ldc, pad, u, 1);
    u[0] = mix_term(w->p, 1, ldc, w->o, ldd, rows, SMM_UPPER);
    smm(kv->dv, ldd, pad, n->dp, add, u, 1);
    u[0] = mix_term(w->dp, ldc, 1, t->f, ldm, rows, SMM_LOWER);
    u[1] = mix_term(w->o, ldd, 1, xv, ldm, a->d, SMM_FULL);
    smm(w->db, ldm, pad, n->m2, false, u, with_x);
    u[0] = mix_term(w->dp, 1, ldc, w->b, ldm, rows, SMM_UPPER);
    smm(w->df, ldm, pad, n->m2, add, u, 1);
    u[0] = mix_term(w->o, 1, ldd, w->b, ldm, rows, SMM_FULL);
    if (loc) smm(loc + n->rp * ldm, ldm, n->dp, n->m2, add, u, 1);
    /* B = conj(c E);  conj(c) = a gg;  a = E T */
    exponent_moment(rec->e, w->b, w->db, t, n, rows, false, add);
    float *da = w->b; /* B is not needed any more */
    u[0] = mix_term(w->db, ldm, 1, t->gg, ldm, n->m2, SMM_FULL);
    smm(da, ldm, pad, n->m2, false, u, 1);
    u[0] = mix_term(w->t, 1, ldm, w->db, ldm, rows, SMM_FULL);
    smm(w->dgg, ldm, n->m2, n->m2, add, u, 1);
    exponent_moment(rec->e, w->t, da, t, n, rows, true, true);
    /* T = S F~ + Q X~_k;  S = tril(Q K^T) */
    u[0] = mix_term(da, ldm, 1, t->ft, c->plan.ldt, n->m2, SMM_FULL);
    smm_lower(w->dp, ldc, pad, u, 1);
    u[0] = mix_term(w->s, 1, ldc, da, ldm, rows, SMM_UPPER);
    smm(w->df, ldm, pad, n->m2, true, u, 1);
    u[0] = mix_term(w->dp, ldc, 1, w->k, ldr, rows, SMM_LOWER);
    u[1] = mix_term(da, ldm, 1, w->xk, ldr, n->m2, SMM_FULL);
    smm(w->dq, ldr, pad, n->rp, false, u, with_x);
    u[0] = mix_term(w->q, 1, ldr, da, ldm, rows, SMM_FULL);
    if (loc) smm(loc, ldm, n->rp, n->m2, add, u, 1);
    u[0] = mix_term(w->dp, 1, ldc, w->q, ldr, rows, SMM_UPPER);
    smm(kv->dk, ldr, pad, n->rp, add, u, 1);
    smm_copy_out(ida_act_real(c->gr->dq) + (token * a->h + h) * a->r, a->h * a->r, w->dq, ldr, rows, a->r, false);
}

void IDA_CPU(bwd_local)(const bwd_work *w, const bwd_call *c, int64_t g, int64_t token, int64_t rows, const float *x, float *loc,
                        const bwd_record *rec, const bwd_kv *kv) {
    const ida_interdomain_args *a = c->a;
    const mix_dims *n = &c->plan.n;
    const mix_table *t = c->plan.tables + g;
    const int64_t per_group = a->h / a->g;
    smm_pack(w->k, n->ldr, ida_act_real(a->k) + (token * a->g + g) * a->r, a->g * a->r, rows, a->r, smm_pad(rows));
    if (x) smm_transpose(w->xk, n->ldr, x, n->ldm, n->rp, n->m2);
    for (int64_t h = 0; h < per_group; h++) head_local(w, c, t, g * per_group + h, token, rows, x, loc, rec, kv, h > 0);
    table_moments(rec->local0, rec->local1, w->df, t, n, rows);
    fold_dgg(rec->g, w->dgg, n, a->readout == IDA_READOUT_HERMITIAN);
}

void IDA_CPU(bwd_state)(const bwd_work *w, const bwd_call *c, int64_t g, int64_t rows, const float *hat, const bwd_record *rec,
                        const bwd_kv *kv) {
    const ida_interdomain_args *a = c->a;
    const mix_dims *n = &c->plan.n;
    const mix_table *t = c->plan.tables + g;
    const int64_t pad = mix_rows_mr(rows);
    const float *hat_v = hat + n->rp * n->ldm;
    smm_term u[2];
    smm_transpose(w->xk, n->ldr, hat, n->ldm, n->rp, n->m2);
    smm_transpose(w->xv, n->ldd, hat_v, n->ldm, n->dp, n->m2);
    u[0] = mix_term(t->f, n->ldm, 1, w->xk, n->ldr, n->m2, SMM_FULL);
    smm(kv->dk, n->ldr, pad, n->rp, true, u, 1);
    u[0] = mix_term(t->f, n->ldm, 1, w->xv, n->ldd, n->m2, SMM_FULL);
    smm(kv->dv, n->ldd, pad, n->dp, true, u, 1);
    u[0] = mix_term(w->kt, 1, n->ldc, hat, n->ldm, a->r, SMM_FULL);
    u[1] = mix_term(w->vt, 1, n->ldc, hat_v, n->ldm, a->d, SMM_FULL);
    smm(w->df, n->ldm, pad, n->m2, false, u, 2);
    table_moments(rec->state0, rec->state1, w->df, t, n, rows);
}

void IDA_CPU(bwd_copy_kv)(const bwd_call *c, int64_t g, int64_t token, int64_t rows, const bwd_kv *kv) {
    const ida_interdomain_args *a = c->a;
    const mix_dims *n = &c->plan.n;
    smm_copy_out(ida_act_real(c->gr->dk) + (token * a->g + g) * a->r, a->g * a->r, kv->dk, n->ldr, rows, a->r, false);
    smm_copy_out(ida_act_real(c->gr->dv) + (token * a->g + g) * a->d, a->g * a->d, kv->dv, n->ldd, rows, a->d, false);
}

void IDA_CPU(bwd_part)(float *part, const bwd_work *w, const bwd_call *c, int64_t g, int64_t rows) {
    const mix_dims *n = &c->plan.n;
    const smm_term u = mix_term(w->kt, n->ldc, 1, c->plan.tables[g].f, n->ldm, rows, SMM_FULL);
    smm(part, n->ldm, n->wp, n->m2, false, &u, 1);
}

void IDA_CPU(bwd_state_scan)(float *after, const float *x, const float *lam, const mix_dims *n) {
    for (int64_t r = 0; r < n->wp; r++)
        for (int64_t m = 0; m < n->mp; m += IDA_VL) {
            const int64_t re = r * n->ldm + m, im = re + n->mp;
            const vf sr = vf_load(x + re) + vf_load(after + re), si = vf_load(x + im) + vf_load(after + im);
            const vf lr = vf_load(lam + m), li = vf_load(lam + n->mp + m);
            vf_store(after + re, sr * lr - si * li);
            vf_store(after + im, sr * li + si * lr);
        }
}

void IDA_CPU(bwd_gradient_scan)(float *dx, float *hat, const float *loc, const float *x_after, const float *lam, float *moment,
                                const mix_dims *n) {
    for (int64_t b = 0; b < bwd_scan_blocks(n); b++) {
        const int64_t end = (b + 1) * BWD_SCAN_BLOCK < n->wp ? (b + 1) * BWD_SCAN_BLOCK : n->wp;
        for (int64_t m = 0; m < n->mp; m += IDA_VL) {
            const vf lr = lam ? vf_load(lam + m) : vf_set1(1.0f), li = lam ? vf_load(lam + n->mp + m) : vf_zero();
            vf sr = vf_zero(), si = sr;
            for (int64_t r = b * BWD_SCAN_BLOCK; r < end; r++) {
                const int64_t re = r * n->ldm + m, im = re + n->mp;
                const vf dr = vf_load(dx + re), di = vf_load(dx + im), xr = vf_load(x_after + re), xi = vf_load(x_after + im);
                const vf hr = lr * dr + li * di, hi = lr * di - li * dr;
                sr = xr * dr + (xi * di + sr);
                si = xr * di + (si - xi * dr);
                vf_store(dx + re, loc ? hr + vf_load(loc + re) : hr);
                vf_store(dx + im, loc ? hi + vf_load(loc + im) : hi);
                vf_store(hat + re, hr);
                vf_store(hat + im, hi);
            }
            vf_store(moment + b * n->m2 + m, sr);
            vf_store(moment + b * n->m2 + n->mp + m, si);
        }
    }
}
