/* The three BLAS products that MLX's CPU backend imports, forwarded to the OpenBLAS inside numpy's wheel, whose
 * names carry a prefix and whose integers have 64 bits. BRAMLEY_BLAS is the path of that library. It is opened
 * here, out of the global scope, so that none of its own symbols can take the place of another library's. */
#include <dlfcn.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Products so far. Two threads may lose a count between them; it only has to be more than zero. */
unsigned long bramley_blas_calls = 0;

#define GEMM(letter, scalar, element)                                                                             \
    static void (*letter##gemm)(int, int, int, int64_t, int64_t, int64_t, scalar, const element *, int64_t,       \
                                const element *, int64_t, scalar, element *, int64_t);                            \
    void cblas_##letter##gemm(int order, int trans_a, int trans_b, int m, int n, int k, scalar alpha,             \
                              const element *a, int lda, const element *b, int ldb, scalar beta, element *c,      \
                              int ldc) {                                                                          \
        bramley_blas_calls++;                                                                                     \
        letter##gemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);                      \
    }

GEMM(s, float, float)
GEMM(d, double, double)
GEMM(c, const void *, void)

static void (*set_threads)(int);
static char *(*core_name)(void);

/* 1 when every function above can be called. */
int bramley_blas_ready(void) { return sgemm && dgemm && cgemm && set_threads && core_name; }

void bramley_blas_set_threads(int threads) { set_threads(threads); }

const char *bramley_blas_core(void) { return core_name(); }

__attribute__((constructor)) static void bind(void) {
    void *library = dlopen(BRAMLEY_BLAS, RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    *(void **)&sgemm = dlsym(library, "scipy_cblas_sgemm64_");
    *(void **)&dgemm = dlsym(library, "scipy_cblas_dgemm64_");
    *(void **)&cgemm = dlsym(library, "scipy_cblas_cgemm64_");
    *(void **)&set_threads = dlsym(library, "scipy_openblas_set_num_threads64_");
    *(void **)&core_name = dlsym(library, "scipy_openblas_get_corename64_");
}

#ifdef __cplusplus
}
#endif
