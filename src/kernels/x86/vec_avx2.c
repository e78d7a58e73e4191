/* SPDX-License-Identifier: Apache-2.0 */
/* Row ops and attention of the avx2 level. */
#include "kernels/x86/lanes_avx2.h"
#include "kernels/lanes/rows_body.h"
#include "kernels/lanes/attend_body.h"
