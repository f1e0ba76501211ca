"""A compilation cache that outlives the process: MJX programs take up to a minute to compile."""

import os
from pathlib import Path

import jax


def enable_cache() -> None:
    """Turns JAX's persistent compilation cache on, unless it is already or `RISKPPO_CACHE` is `off`.

    `RISKPPO_CACHE` may name another folder; the default is `riskppo_jax` in the user's cache folder. A folder that
    cannot be written is no reason to fail.
    """
    wish = os.environ.get("RISKPPO_CACHE", "")
    if wish.lower() in ("off", "0", "no", "false") or jax.config.jax_compilation_cache_dir:
        return
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(wish) if wish else Path(home) / "riskppo_jax"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_compilation_cache_dir", str(folder))
    compilation_cache.reset_cache()  # programs compiled before this point settled that there is none
