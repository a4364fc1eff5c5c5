/* legs.c - eigenvalues of the normal part of HiPPO-LegS, without a matrix.
 *
 * Order N = 2m. The normal part is -1/2 I + K with K_nk = -1/2 sqrt((2n+1)(2k+1)) sign(n-k). Write K y = i w y,
 * u_n = sqrt(2n+1) y_n, and the centred sums Y_n = sum_{k<=n} u_k - (1/2) sum_k u_k. Row n then reads
 *     -a_n (Y_{n-1} + Y_n) = i w (Y_n - Y_{n-1}),   a_n = n + 1/2,   so   Y_n = -(a_n - i w)/(a_n + i w) Y_{n-1}.
 * Y_{N-1} = -Y_{-1}, each factor is -exp(-2 i atan(w/a_n)), and N is even; hence one equation per eigenvalue:
 *     sum_{n<N} atan(w / (n + 1/2)) = pi/2 + pi j,   j = 0 .. m-1.
 * Its left side is concave in w, so Newton's method from the eigenvalue before climbs to the root and never passes it. */
#include "layers/legs.h"

#include <math.h>

void ida_legs_frequencies(int64_t m, double *out) {
    double w = 0;
    for (int64_t j = 0; j < m; j++) {
        double target = 3.14159265358979323846 * ((double)j + 0.5);
        for (int it = 0; it < 200; it++) {
            double phase = 0, slope = 0;
            for (int64_t n = 0; n < 2 * m; n++) {
                double a = (double)n + 0.5;
                phase += atan(w / a);
                slope += a / (a * a + w * w);
            }
            double step = (target - phase) / slope;
            if (step <= 4e-16 * w) break; /* rounding has taken over */
            w += step;
        }
        out[j] = w;
    }
}
