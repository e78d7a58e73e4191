/* SPDX-License-Identifier: Apache-2.0 */
/* Row ops and attention of the neon level. */
#include "kernels/arm/lanes_neon.h"
#include "kernels/lanes/rows_body.h"
#include "kernels/lanes/attend_body.h"
