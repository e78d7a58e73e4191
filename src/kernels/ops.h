/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of each level that are not products (those: matmul.h); the registry puts them into tables. */
#ifndef WR_KERNELS_OPS_H
#define WR_KERNELS_OPS_H

#include "kernels/kernels.h"

#define DECLARE_OPS(level)                                                                                                                                     \
    void wr_rmsnorm_##level(const float *x, const float *w, float *y, uint32_t n, float eps);                                                                  \
    bool wr_quantize_##level(const struct wr_act *, uint32_t row);                                                                                             \
    void wr_add_##level(float *x, const float *y, size_t n);                                                                                                   \
    void wr_silu_mul_##level(float *gate, const float *up, size_t n);                                                                                          \
    void wr_gelu_mul_##level(float *gate, const float *up, size_t n);                                                                                          \
    void wr_rope_##level(float *x, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, const float *c, const float *s, bool interleaved);                     \
    bool wr_kv_store_##level(enum wr_kv_type, uint32_t head_dim, const float *k, const float *v, void *k_block, uint32_t slot, void *v_row);                   \
    void wr_attend_tile_##level(const struct wr_tile *);                                                                                                       \
    bool wr_all_finite_##level(const float *x, size_t n);

DECLARE_OPS(scalar)
#ifdef WR_X86
DECLARE_OPS(avx2)
DECLARE_OPS(avx512)
#endif
#ifdef WR_ARM64
DECLARE_OPS(neon)
#endif
#undef DECLARE_OPS

#endif
