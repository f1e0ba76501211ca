"""`python -m riskppo_jax` is `riskppo`."""

import sys

from riskppo_jax.cli import main

sys.exit(main())
