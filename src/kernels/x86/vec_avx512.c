/* SPDX-License-Identifier: Apache-2.0 */
/* Row ops and attention of the avx512 level. */
#include "kernels/x86/lanes_avx512.h"
#include "kernels/lanes/rows_body.h"
#include "kernels/lanes/attend_body.h"
