/* SPDX-License-Identifier: Apache-2.0 */
/* What the products and the ceilings of the arm levels start from. */
#ifndef WR_ARM_VECTOR_H
#define WR_ARM_VECTOR_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "kernels/inline.h"

#define CHANGED(v) __asm__ volatile("" : "+w"(v)) /* for all that the compiler knows */

#define ROWS 4   /* weight rows of a panel: f32 of a vector */
#define TILE_M 8 /* activation rows of a tile: their f32 accumulators, 32 weights of each row, and what is under way, in 32 registers */

#endif
