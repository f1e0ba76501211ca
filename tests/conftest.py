"""What all tests share."""

import jax

jax.devices()  # a sweep asked for by a test finds JAX at work, and does not turn this process's cores into devices
