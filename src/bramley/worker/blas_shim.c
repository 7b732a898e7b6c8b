/* The three BLAS products that MLX's CPU backend imports, forwarded to the OpenBLAS inside numpy's wheel, whose
 * names carry a prefix and whose integers have 64 bits. BRAMLEY_BLAS is the path of that library. It is opened
 * here, out of the global scope, so that none of its own symbols can take the place of another library's.
 *
 * Products of few rows with a matrix of weights are computed here. Large products are cut into parts that several
 * threads share: OpenBLAS's own threads spin while they wait for each other, which takes the cores from everyone else. */
#include <dlfcn.h>
#include <linux/futex.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif

/* ---- Threads ---- */

enum { MOST_THREADS = 64, MOST_PARTS = 256, SPINS = 2000 };

typedef void (*part_of)(const void *work, int part);

/* What is to be done. A thread that has drawn a part may read this: the product is not over before its part is. */
static part_of run_part;
static const void *work_of;
static uint32_t done;
/* Which product (bits 32 to 63), its number of parts (16 to 31), and the next one to be drawn (0 to 15). */
static uint64_t tickets;
/* Changes with every product; threads that found nothing to do sleep on it. */
static uint32_t generation;
static uint32_t sleepers;
static int wanted = 1; /* threads, the caller's included */
static int helpers;
static int in_use;

/* The number of a part nobody has drawn, -1 when there is none. */
static int draw_part(void) {
    uint64_t seen = __atomic_load_n(&tickets, __ATOMIC_ACQUIRE);
    while ((seen & 0xffff) < ((seen >> 16) & 0xffff))
        if (__atomic_compare_exchange_n(&tickets, &seen, seen + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return (int)(seen & 0xffff);
    return -1;
}

static void do_parts(void) {
    for (int part; (part = draw_part()) >= 0;) {
        run_part(work_of, part);
        __atomic_add_fetch(&done, 1, __ATOMIC_RELEASE);
    }
}

static void *help(void *unused) {
    (void)unused;
    for (;;) {
        uint32_t seen = __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
        do_parts();
        int spins = 0;
        while (__atomic_load_n(&generation, __ATOMIC_ACQUIRE) == seen && spins++ < SPINS) PAUSE();
        if (__atomic_load_n(&generation, __ATOMIC_ACQUIRE) != seen) continue;
        __atomic_add_fetch(&sleepers, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &generation, FUTEX_WAIT_PRIVATE, seen, 0, 0, 0);
        __atomic_sub_fetch(&sleepers, 1, __ATOMIC_SEQ_CST);
    }
    return 0;
}

/* At the first product, not before: a process may fork until then. They stay for good. */
static void start_helpers(void) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads that wait for them */
    while (helpers < wanted - 1) {
        pthread_t thread;
        if (pthread_create(&thread, 0, help, 0)) {
            wanted = helpers + 1;
            break;
        }
        pthread_detach(thread);
        helpers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, 0);
}

/* Run all parts, with whatever threads come to help. A second product at the same time is computed by its own thread. */
static void share(part_of run, const void *work, int parts) {
    int free = 0;
    if (wanted < 2 || parts < 2 ||
        !__atomic_compare_exchange_n(&in_use, &free, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        for (int part = 0; part < parts; part++) run(work, part);
        return;
    }
    if (helpers < wanted - 1) start_helpers();
    run_part = run;
    work_of = work;
    __atomic_store_n(&done, 0, __ATOMIC_RELAXED);
    uint64_t number = (__atomic_load_n(&tickets, __ATOMIC_RELAXED) >> 32) + 1;
    __atomic_store_n(&tickets, number << 32 | (uint64_t)parts << 16, __ATOMIC_RELEASE);
    __atomic_add_fetch(&generation, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&sleepers, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &generation, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0);
    do_parts();
    /* the last parts are being computed; a thread that has lost its core must get it back */
    for (int spins = 0; __atomic_load_n(&done, __ATOMIC_ACQUIRE) < (uint32_t)parts; spins++)
        spins < SPINS ? PAUSE() : (void)sched_yield();
    __atomic_store_n(&in_use, 0, __ATOMIC_RELEASE);
}

/* ---- Few rows ---- */

enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };

#if defined(__x86_64__)

enum { STREAMS = 4, SKINNY_DEPTH = 2048, SKINNY_ROWS = 128, SKINNY_COLUMNS = 16 };

typedef float eight __attribute__((vector_size(32), aligned(4)));
typedef int places __attribute__((vector_size(32)));

/* The sum of each of four: pairs within both halves, pairs of those, and the two halves. */
static inline __attribute__((always_inline)) void add_up(const eight v[STREAMS], float totals[STREAMS]) {
    const places even = {0, 8, 2, 10, 4, 12, 6, 14}, odd = {1, 9, 3, 11, 5, 13, 7, 15};
    const places low = {0, 1, 8, 9, 4, 5, 12, 13}, high = {2, 3, 10, 11, 6, 7, 14, 15};
    eight p = __builtin_shuffle(v[0], v[1], even) + __builtin_shuffle(v[0], v[1], odd);
    eight q = __builtin_shuffle(v[2], v[3], even) + __builtin_shuffle(v[2], v[3], odd);
    eight r = __builtin_shuffle(p, q, low) + __builtin_shuffle(p, q, high);
    for (int j = 0; j < STREAMS; j++) totals[j] = r[j] + r[j + 4];
}

typedef void (*product)(int, int, int, float, const float *, int64_t, const float *, int64_t, float, float *, int64_t);

/* The two variants of the kernel. */
#define NAME avx2
#define TARGET "avx2,fma"
#define LANES 8
#define TILE 3
#include "blas_skinny.h"

#define NAME avx512
#define TARGET "avx512f,avx512vl,avx512dq,avx2,fma"
#define LANES 16
#define TILE 6
#include "blas_skinny.h"

static product skinny; /* null where the processor has neither */

static void choose_skinny(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) skinny = avx2;
    if (skinny && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        skinny = avx512;
}

#endif

/* ---- Products ---- */

/* Multiplications that are worth a part of their own, the columns of c that a part is a multiple of, and how many of them
 * OpenBLAS should get at once: it puts all of a into another order for each part. */
enum { PART_WORK = 1 << 18, PART_COLUMNS = 32, MANY_COLUMNS = 256, PARTS_PER_THREAD = 2 };

static void (*sgemm)(int, int, int, int64_t, int64_t, int64_t, float, const float *, int64_t, const float *, int64_t,
                     float, float *, int64_t);

typedef struct {
    int order, trans_a, trans_b, m, n, k;
    float alpha, beta;
    const float *a, *b;
    float *c;
    int64_t lda, ldb, ldc;
    int columns; /* of a part */
} s_product;

static int is_skinny(const s_product *w) {
#if defined(__x86_64__)
    return skinny && w->m <= SKINNY_ROWS && w->trans_a == PLAIN && w->trans_b == TRANSPOSED && w->n >= SKINNY_COLUMNS;
#else
    (void)w;
    return 0;
#endif
}

/* How many columns of c one part is. Other parts may add up in another order where OpenBLAS computes them. */
static int part_columns(const s_product *w) {
    if (w->order != ROW_MAJOR) return w->n;
    int64_t parts = (int64_t)w->m * w->n * w->k / PART_WORK, most = w->n / PART_COLUMNS;
    if (!is_skinny(w)) most = w->n / MANY_COLUMNS < PARTS_PER_THREAD * wanted ? w->n / MANY_COLUMNS : PARTS_PER_THREAD * wanted;
    if (parts > most) parts = most;
    if (parts > MOST_PARTS) parts = MOST_PARTS;
    if (parts < 2 || wanted < 2) return w->n;
    return (int)((w->n + parts * PART_COLUMNS - 1) / (parts * PART_COLUMNS) * PART_COLUMNS);
}

static void s_part(const void *work, int part) {
    const s_product *w = (const s_product *)work;
    int from = part * w->columns, n = w->n - from < w->columns ? w->n - from : w->columns;
    const float *b = w->b + (w->trans_b == PLAIN ? from : from * w->ldb);
#if defined(__x86_64__)
    if (is_skinny(w)) {
        skinny(w->m, n, w->k, w->alpha, w->a, w->lda, b, w->ldb, w->beta, w->c + from, w->ldc);
        return;
    }
#endif
    sgemm(w->order, w->trans_a, w->trans_b, w->m, n, w->k, w->alpha, w->a, w->lda, b, w->ldb, w->beta, w->c + from,
          w->ldc);
}

/* Products so far. Two threads may lose a count between them; it only has to be more than zero. */
unsigned long bramley_blas_calls = 0;

void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc) {
    bramley_blas_calls++;
    s_product work = {order, trans_a, trans_b, m, n, k, alpha, beta, a, b, c, lda, ldb, ldc, n};
    work.columns = part_columns(&work);
    share(s_part, &work, n > work.columns ? (n + work.columns - 1) / work.columns : 1);
}

#define GEMM(letter, scalar, element)                                                                             \
    static void (*letter##gemm)(int, int, int, int64_t, int64_t, int64_t, scalar, const element *, int64_t,       \
                                const element *, int64_t, scalar, element *, int64_t);                            \
    void cblas_##letter##gemm(int order, int trans_a, int trans_b, int m, int n, int k, scalar alpha,             \
                              const element *a, int lda, const element *b, int ldb, scalar beta, element *c,      \
                              int ldc) {                                                                          \
        bramley_blas_calls++;                                                                                     \
        letter##gemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);                      \
    }

GEMM(d, double, double)
GEMM(c, const void *, void)

/* ---- Binding ---- */

static void (*set_threads)(int);
static int (*get_threads)(void);
static char *(*core_name)(void);

/* 1 when every function above can be called. */
int bramley_blas_ready(void) { return sgemm && dgemm && cgemm && set_threads && core_name; }

void bramley_blas_set_threads(int threads) {
    set_threads(1);
    wanted = threads < MOST_THREADS ? threads : MOST_THREADS;
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
    /* preloaded by itself, under another program: as many as OpenBLAS was told in the environment */
    if (get_threads && set_threads) bramley_blas_set_threads(get_threads());
#if defined(__x86_64__)
    choose_skinny();
#endif
}

#ifdef __cplusplus
}
#endif
