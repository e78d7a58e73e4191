/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Included before all C++ of llama.cpp (peer.py). gcc 12's _tile_loadconfig says that it reads 8 of the 64 bytes of a configuration, so the stores
 * to the others are dropped as dead, and llama.cpp ends with SIGSEGV at its first product on a CPU with AMX.
 */
#ifdef __AMX_TILE__
#include <immintrin.h>

static inline void peer_tile_loadconfig(const void *config) { __asm__ volatile("ldtilecfg %0" : : "m"(*(const char(*)[64])config)); }
#define _tile_loadconfig peer_tile_loadconfig
#endif
