"""Sums of lognormals: the approximations of Shuffled DPSGD's Fig. 2, their errors, and where they end.

S = sum of d terms exp(Y_i), Y_i ~ N(mu_i, sigma^2). Theorem 6 of Shuffled DPSGD takes S as one lognormal
(Fenton-Wilkinson, Lemma 1); the paper compares five methods at sigma = 0.25 and d = 1e8. Here:

    ===================  ==========================================================================
    method               what it is
    ===================  ==========================================================================
    `fenton_wilkinson`   the sum's mean and variance, closed form
    `schwartz_yeh`       mean and variance of log S, two terms at a time; doubling at large d
    `least_squares`      straight line through a sample's probability plot, or a fit of its distribution;
                         `least_squares_quadratic`, a parabola, stands beside it
    `kernel_density`     Gaussian kernels on a sample of log S
    `monte_carlo`        draws, term by term or by counts (`CountedSum`), in bounded memory, resumable
    ===================  ==========================================================================

`error` is sup |F - F_S| with an interval that holds at every number of draws (DKW); `quality` turns it into
an answer at a tolerance, and `largest_good_sigma` into the place where an approximation stops being good.

The sigma of these lognormals is c / sigma of Theorem 6, one over the noise multiplier. Fig. 2's 0.25 is a
noise multiplier of 4; a noise multiplier of 0.25 is a sigma of 4, where the same approximation is another
matter.

The terms of Theorem 6's own sums share one Y: `tests/oracles/dependent_lognormals.py` has those, and
`lognormal_reference.py` a second truth beside draws, which benchmarks and tests use.
"""
