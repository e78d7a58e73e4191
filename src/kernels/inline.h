/* SPDX-License-Identifier: Apache-2.0 */
/* What is written into its caller or kept out of it, and loops that are written out: of the products and ceilings of all levels. */
#ifndef WR_KERNELS_INLINE_H
#define WR_KERNELS_INLINE_H

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define NEVER_INLINE static __attribute__((noinline))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif
