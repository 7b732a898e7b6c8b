/* The three BLAS products that MLX's CPU backend imports, forwarded to the OpenBLAS inside numpy's wheel, whose
 * names carry a prefix and whose integers have 64 bits. BRAMLEY_BLAS is the path of that library. It is opened
 * here, out of the global scope, so that none of its own symbols can take the place of another library's. Products of
 * few rows with a matrix of weights are computed here. */
#include <dlfcn.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__x86_64__)

/* c = alpha a b^T + beta c for few rows of a, as in decoding, where b is a weight matrix [n, k]. OpenBLAS copies b into
 * another order first, which pays only for many rows, and reads it at a fraction of the memory's speed. Here b is read
 * once, in SKINNY_STREAMS places far apart: a processor fetches ahead along each, but not across short rows next to
 * each other. One thread. */
typedef float lane __attribute__((vector_size(32), aligned(4)));
enum { LANES = 8, SKINNY_STREAMS = 4, SKINNY_TILE = 3, SKINNY_DEPTH = 2048, SKINNY_ROWS = 32, SKINNY_COLUMNS = 16 };

/* c[i][j * step] += alpha * a[i] . b[j] for i < rows, j < columns; both are constants, so that all loops unroll. */
static inline __attribute__((always_inline)) void skinny_tile(const int rows, const int columns, int k, float alpha,
                                                              const float *a, int64_t lda, const float *b, int64_t ldb,
                                                              float *c, int64_t ldc, int64_t step) {
    lane sums[SKINNY_TILE][SKINNY_STREAMS];
    int d = 0;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) sums[i][j] = (lane){0};
    for (; d + LANES <= k; d += LANES) {
        lane x[SKINNY_TILE];
#pragma GCC unroll 3
        for (int i = 0; i < rows; i++) x[i] = *(const lane *)(a + i * lda + d);
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++) {
            lane y = *(const lane *)(b + j * ldb + d);
#pragma GCC unroll 3
            for (int i = 0; i < rows; i++) sums[i][j] += x[i] * y;
        }
    }
#pragma GCC unroll 3
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++) {
            lane v = sums[i][j];
            float sum = ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]));
            for (int e = d; e < k; e++) sum += a[i * lda + e] * b[j * ldb + e];
            c[i * ldc + j * step] += alpha * sum;
        }
}

__attribute__((target("avx2,fma"))) static void skinny(int m, int n, int k, float alpha, const float *a, int64_t lda,
                                                       const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    int streams = n / SKINNY_STREAMS;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) c[i * ldc + j] = beta == 0 ? 0 : beta * c[i * ldc + j];
    for (int from = 0; from < k; from += SKINNY_DEPTH) {
        int depth = k - from < SKINNY_DEPTH ? k - from : SKINNY_DEPTH;
        for (int j = 0; j < streams; j++) {
            const float *x = a + from, *y = b + j * ldb + from;
            float *z = c + j;
            int left = m;
            for (; left >= 3; left -= 3, x += 3 * lda, z += 3 * ldc)
                skinny_tile(3, SKINNY_STREAMS, depth, alpha, x, lda, y, streams * ldb, z, ldc, streams);
            if (left == 2) skinny_tile(2, SKINNY_STREAMS, depth, alpha, x, lda, y, streams * ldb, z, ldc, streams);
            if (left == 1) skinny_tile(1, SKINNY_STREAMS, depth, alpha, x, lda, y, streams * ldb, z, ldc, streams);
        }
        for (int j = streams * SKINNY_STREAMS; j < n; j++)
            for (int i = 0; i < m; i++) {
                const float *x = a + i * lda + from, *y = b + j * ldb + from;
                skinny_tile(1, 1, depth, alpha, x, lda, y, ldb, c + i * ldc + j, ldc, 1);
            }
    }
}

static int has_skinny = 0; /* the processor can, and there is one thread: more are OpenBLAS's business */

static int is_skinny(int order, int trans_a, int trans_b, int m, int n) {
    return has_skinny && order == 101 && trans_a == 111 && trans_b == 112 && m <= SKINNY_ROWS && n >= SKINNY_COLUMNS;
}

static void choose_skinny(int threads) {
    __builtin_cpu_init();
    has_skinny = threads == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

#else

static void choose_skinny(int threads) { (void)threads; }

#endif

/* Products so far. Two threads may lose a count between them; it only has to be more than zero. */
unsigned long bramley_blas_calls = 0;

#if defined(__x86_64__)
#define BEFORE_s                                                                                                       \
    if (is_skinny(order, trans_a, trans_b, m, n)) {                                                                    \
        skinny(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);                                                          \
        return;                                                                                                        \
    }
#else
#define BEFORE_s
#endif
#define BEFORE_d
#define BEFORE_c

#define GEMM(letter, scalar, element)                                                                             \
    static void (*letter##gemm)(int, int, int, int64_t, int64_t, int64_t, scalar, const element *, int64_t,       \
                                const element *, int64_t, scalar, element *, int64_t);                            \
    void cblas_##letter##gemm(int order, int trans_a, int trans_b, int m, int n, int k, scalar alpha,             \
                              const element *a, int lda, const element *b, int ldb, scalar beta, element *c,      \
                              int ldc) {                                                                          \
        bramley_blas_calls++;                                                                                     \
        BEFORE_##letter                                                                                           \
        letter##gemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);                      \
    }

GEMM(s, float, float)
GEMM(d, double, double)
GEMM(c, const void *, void)

static void (*set_threads)(int);
static int (*get_threads)(void);
static char *(*core_name)(void);

/* 1 when every function above can be called. */
int bramley_blas_ready(void) { return sgemm && dgemm && cgemm && set_threads && core_name; }

void bramley_blas_set_threads(int threads) {
    set_threads(threads);
    choose_skinny(threads);
}

const char *bramley_blas_core(void) { return core_name(); }

__attribute__((constructor)) static void bind(void) {
    void *library = dlopen(BRAMLEY_BLAS, RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    *(void **)&sgemm = dlsym(library, "scipy_cblas_sgemm64_");
    *(void **)&dgemm = dlsym(library, "scipy_cblas_dgemm64_");
    *(void **)&cgemm = dlsym(library, "scipy_cblas_cgemm64_");
    *(void **)&set_threads = dlsym(library, "scipy_openblas_set_num_threads64_");
    *(void **)&get_threads = dlsym(library, "scipy_openblas_get_num_threads64_");
    *(void **)&core_name = dlsym(library, "scipy_openblas_get_corename64_");
    if (get_threads) choose_skinny(get_threads());
}

#ifdef __cplusplus
}
#endif
