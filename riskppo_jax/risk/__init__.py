"""Risk: optimized certainty equivalents, their estimates, and the Lagrangian built from them.

One sign convention for the whole package: a sample `x` is good when large. A quantity `v` to be kept small
enters as `x = -v`; its constraint `rho(v) <= c` is met when its slack `c + t + E[g(-v - t)]` is non-negative.
Nothing here imports anything else of this package but its error type and type names.
"""
