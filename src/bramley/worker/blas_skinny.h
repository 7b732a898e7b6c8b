/* c = alpha a b^T + beta c for few rows of a, where b is a weight matrix [n, k], as in decoding and short prompts.
 * OpenBLAS copies b into another order first, which pays only for many rows. Here b is read once, in STREAMS places
 * far apart: a processor fetches ahead along each, but not across short rows next to each other.
 *
 * Included once for each instruction set, with NAME, TARGET, LANES (floats of a register) and TILE (rows of a whose sums
 * are in registers at a time) defined. An element's sum is added up in the same order wherever it stands. */
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define LANE JOIN(NAME, lane)
typedef float LANE __attribute__((vector_size(LANES * 4), aligned(4)));

static inline __attribute__((always_inline)) eight JOIN(NAME, halved)(LANE sums) {
    union {
        LANE whole;
        eight parts[LANES / 8];
    } both = {sums};
    eight sum = both.parts[0];
    for (int i = 1; i < LANES / 8; i++) sum += both.parts[i];
    return sum;
}

/* c[i][j * step] += alpha * a[i] . b[j] for i < rows, j < columns; both are constants, so that all loops unroll. */
static inline __attribute__((always_inline)) void JOIN(NAME, tile)(const int rows, const int columns, int k,
                                                                   float alpha, const float *a, int64_t lda,
                                                                   const float *b, int64_t ldb, float *c, int64_t ldc,
                                                                   int64_t step) {
    LANE sums[TILE][STREAMS];
    int d = 0;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) sums[i][j] = (LANE){0};
    for (; d + LANES <= k; d += LANES) {
        LANE x[TILE];
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) x[i] = *(const LANE *)(a + i * lda + d);
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++) {
            LANE y = *(const LANE *)(b + j * ldb + d);
#pragma GCC unroll 6
            for (int i = 0; i < rows; i++) sums[i][j] += x[i] * y;
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        eight eights[STREAMS];
        float totals[STREAMS];
#pragma GCC unroll 4
        for (int j = 0; j < STREAMS; j++) eights[j] = j < columns ? JOIN(NAME, halved)(sums[i][j]) : (eight){0};
        add_up(eights, totals);
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++) {
            for (int e = d; e < k; e++) totals[j] += a[i * lda + e] * b[j * ldb + e];
            c[i * ldc + j * step] += alpha * totals[j];
        }
    }
}

__attribute__((target(TARGET))) static void NAME(int m, int n, int k, float alpha, const float *a, int64_t lda,
                                                 const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    int streams = n / STREAMS;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) c[i * ldc + j] = beta == 0 ? 0 : beta * c[i * ldc + j];
    for (int from = 0; from < k; from += SKINNY_DEPTH) {
        int depth = k - from < SKINNY_DEPTH ? k - from : SKINNY_DEPTH;
        for (int j = 0; j < streams; j++) {
            const float *x = a + from, *y = b + j * ldb + from;
            float *z = c + j;
            int left = m;
#define ROWS(rows)                                                                                             \
    for (; left >= rows; left -= rows, x += rows * lda, z += rows * ldc)                                       \
        JOIN(NAME, tile)(rows, STREAMS, depth, alpha, x, lda, y, streams * ldb, z, ldc, streams)
            ROWS(TILE);
#if TILE > 4
            ROWS(4);
#endif
            ROWS(2);
            ROWS(1);
#undef ROWS
        }
        for (int j = streams * STREAMS; j < n; j++)
            for (int i = 0; i < m; i++) {
                const float *x = a + i * lda + from, *y = b + j * ldb + from;
                JOIN(NAME, tile)(1, 1, depth, alpha, x, lda, y, ldb, c + i * ldc + j, ldc, 1);
            }
    }
}

#undef JOIN
#undef JOIN_
#undef LANE
#undef NAME
#undef TARGET
#undef LANES
#undef TILE
