"""The memory that trees need, from the models' shapes; requires the optional package `hardware_models`."""

from sequoia_core.files.dtypes import dtype_bytes
from sequoia_core.models.pair_spec import PairSpec
from sequoia_extras.hardware_models.model_shapes import find_shape
from sequoia_extras.hardware_models.roofline import largest_tree, tree_bytes
from ui.session import core_cache, machine


def memory_sentence(pair: PairSpec, dtype: str, size: int) -> str | None:
    """Describe the memory that a pair's trees take, and the largest tree that fits; None if shapes are unknown."""
    if pair.is_alone:
        return None
    try:
        target, draft = (find_shape(str(name)) for name in pair.sources)
        dtype = str(pair.dtype or dtype)
        dtype_bytes(dtype)
    except ValueError:  # an unknown model family, or a pair that is not on this machine
        return None
    sizes = sorted({max(size, 2), 128, core_cache.MAX_TREE_SIZE})
    taken = {n: tree_bytes(target, draft, dtype=dtype, nodes=n) for n in sizes}
    listed = ", ".join(f"{needed / 2**20:,.1f} MiB for n = {n:,}" for n, needed in taken.items())
    words = f"A tree of the current pair takes {listed} in {dtype}, including caches, mask and probabilities."
    free = machine.free_bytes()
    if free is None or free >= taken[sizes[-1]]:
        return words
    return f"{words} The free memory is enough for n = {largest_tree(target, draft, dtype=dtype, free=free):,}."
