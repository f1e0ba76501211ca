"""What outlives the process: compiled programs (MJX takes up to a minute) and layouts that took long to draw."""

import os
from pathlib import Path

import jax


def enable_cache() -> None:
    """Turns JAX's persistent compilation cache on, unless it is already or there is no folder for it."""
    folder = None if jax.config.jax_compilation_cache_dir else cache_folder()
    if folder is None:
        return
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_compilation_cache_dir", str(folder))
    compilation_cache.reset_cache()  # programs compiled before this point settled that there is none


def cache_folder() -> Path | None:
    """The folder of all caches, or None if `RISKPPO_CACHE` is `off` or it cannot be made.

    `RISKPPO_CACHE` may name another folder; the default is `riskppo_jax` in the user's cache folder. A folder that
    cannot be written is no reason to fail.
    """
    wish = os.environ.get("RISKPPO_CACHE", "")
    if wish.lower() in ("off", "0", "no", "false"):
        return None
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(wish) if wish else Path(home) / "riskppo_jax"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the latter: nobody's home
        return None
    return folder
