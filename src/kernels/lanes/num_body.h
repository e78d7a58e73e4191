/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of base/num.h in 16 lanes: the same operations in the same order. Included after a lanes_<level>.h. */
#include "base/num.h"

/* exp(x) / 2^n, n = rint(x * log2e). */
LANES v16 exp_polynomial(v16 x, v16 n)
{
    v16 r = v_fma(n, v_set(-WR_EXP_LN2HI), x);
    r = v_fma(n, v_set(-WR_EXP_LN2LO), r);
    v16 p = v_fma(v_set(WR_EXP_C6), r, v_set(WR_EXP_C5));
    p = v_fma(p, r, v_set(WR_EXP_C4));
    p = v_fma(p, r, v_set(WR_EXP_C3));
    p = v_fma(p, r, v_set(WR_EXP_C2));
    p = v_fma(p, r, v_set(1.0f));
    return v_fma(p, r, v_set(1.0f));
}

LANES v16 v_exp(v16 x)
{
    v16 n = v_rint(v_mul(x, v_set(WR_EXP_LOG2E)));
    v16 p = v_scale2(exp_polynomial(x, n), n);
    p = v_where_less(x, v_set(WR_EXP_MIN), v_zero(), p);
    p = v_where_less(v_set(WR_EXP_MAX), x, v_set(INFINITY), p);
    return v_where_nan(x, x, p);
}

/* exp of x <= 0 or NaN (-0 aside, which no sum tells apart) in fewer operations: adding 1.5 * 2^23 rounds what is not below the limit to a whole number,
 * and leaves it in the low bits. Those of a NaN are anything. */
LANES v16 v_exp_down(v16 x)
{
    const v16 shift = v_set(0x1.8p23f);
    v16 t = v_add(v_mul(x, v_set(WR_EXP_LOG2E)), shift);
    v16 p = v_scale2_low(exp_polynomial(x, v_sub(t, shift)), t);
    return v_where_nan(x, x, v_where_less(x, v_set(WR_EXP_MIN), v_zero(), p));
}

LANES v16 v_tanh(v16 y)
{
    v16 e = v_exp(v_add(y, y));
    return v_sub(v_set(1.0f), v_div(v_set(2.0f), v_add(v_set(1.0f), e)));
}

LANES v16 v_silu(v16 x) { return v_div(x, v_add(v_set(1.0f), v_exp(v_neg(x)))); }

LANES v16 v_gelu(v16 x)
{
    v16 inner = v_mul(v_mul(v_set(WR_GELU_INNER), x), v_fma(v_set(WR_GELU_CUBIC), v_mul(x, x), v_set(1.0f)));
    return v_mul(v_mul(v_set(0.5f), x), v_add(v_set(1.0f), v_tanh(inner)));
}
