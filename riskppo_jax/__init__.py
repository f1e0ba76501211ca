"""Risk-averse constrained reinforcement learning in one compiled JAX program."""
