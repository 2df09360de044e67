"""Where the constants of tfctr/core/storage/row_initializer_impl.h come from: run it to print them with their errors.

    .venv/bin/python tools/fit_normal_quantile.py

UpperQuantile: z with Phi(-z) = p as P(t)/Q(t), t = sqrt(-2 ln p), for 2^-33 <= p <= 1/2: least squares on Chebyshev
nodes, reweighted towards the largest errors (Lawson), which comes near the minimax fit. Log: Chebyshev interpolation of
(ln(1 + f) - f + f^2/2) / f^3 for sqrt(1/2) <= 1 + f <= sqrt(2).
"""

from statistics import NormalDist

import numpy as np

NODES = 4000
ROUNDS = 60


def nodes(low: float, high: float) -> np.ndarray:
    """Chebyshev nodes of an interval."""
    return (low + high) / 2 + (high - low) / 2 * np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)


def fit_rational(x: np.ndarray, y: np.ndarray, above: int, below: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Returns (largest error, coefficients of P, coefficients of Q with Q[0] = 1), lowest power first."""
    best = (np.inf, np.empty(0), np.empty(0))
    weight, scale = np.ones(NODES), np.ones(NODES)
    powers = np.hstack([x[:, None] ** np.arange(above + 1), -y[:, None] * x[:, None] ** np.arange(1, below + 1)])
    for _ in range(ROUNDS):
        row = np.sqrt(weight) / scale
        system = powers * row[:, None]
        column = np.abs(system).max(0)
        solution = np.linalg.lstsq(system / column, y * row, rcond=None)[0] / column
        p, q = solution[: above + 1], np.r_[1.0, solution[above + 1 :]]
        scale = np.abs(np.polyval(q[::-1], x))
        error = np.abs(np.polyval(p[::-1], x) / np.polyval(q[::-1], x) - y)
        if error.max() < best[0]:
            best = (float(error.max()), p, q)
        weight = weight * np.sqrt(error / error.mean() + 1e-3)
        weight /= weight.mean()
    return best


def main() -> None:
    np.set_printoptions(precision=17)
    t = nodes(np.sqrt(2 * np.log(2)), np.sqrt(2 * 33 * np.log(2)) * 1.001)
    normal = NormalDist()
    z = np.array([-normal.inv_cdf(min(p, 0.5)) for p in np.exp(-t * t / 2)])
    error, p, q = fit_rational(t, z, 4, 3)
    print(f"UpperQuantile: error {error:.1e}\n  P {p}\n  Q {q}")

    low, high = np.sqrt(0.5) - 1, np.sqrt(2.0) - 1
    f = nodes(low, high)
    rest = (np.log1p(f) - f + f * f / 2) / f**3
    fit = np.polynomial.chebyshev.Chebyshev.fit(f, rest, 6, domain=[low, high])
    r = np.asarray(fit.convert(kind=np.polynomial.Polynomial).coef, np.float64)
    print(f"Log: error {np.abs((np.polyval(r[::-1], f) - rest) * f**3).max():.1e}\n  R {r}")


if __name__ == "__main__":
    main()
