"""Compiled programs of JAX that outlive the process."""

import jax
from jax.experimental.compilation_cache import compilation_cache


def keep_programs(folder: str, least_seconds: float) -> None:
    """Keeps what is compiled from now on in a folder, and looks there first.

    Args:
        folder: The folder.
        least_seconds: Programs that compile faster are not kept.
    """
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least_seconds)
    # By size nothing is left out.
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # What was compiled before has settled that there is no folder.
    compilation_cache.reset_cache()
