"""The KV cache: keys and values of any shapes, on any devices, keep the accepted path."""

import pytest
import torch

from sequoia_core.models.tree_cache import TreeCache

CPU = torch.device("cpu")
OTHER = torch.device("meta")
LAYOUTS = {  # for each layer, heads, width of keys, width of values and device; then the rows of each buffer
    "alike": ([(2, 3, 3, CPU)] * 3, [6]),
    "latent": ([(1, 6, 3, CPU)] * 3, [3, 3]),
    "mixed": ([(2, 3, 3, CPU), (1, 4, 4, CPU), (2, 3, 3, CPU), (1, 4, 4, CPU), (1, 6, 2, CPU)], [10, 4, 1, 1]),
    "spread": ([(2, 3, 3, CPU), (2, 3, 3, OTHER), (2, 3, 3, CPU)], [4, 2]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_accepted_path_remains_in_every_layer(layout):
    layers, rows = LAYOUTS[layout]
    shares = {CPU: 2, OTHER: 1} if layout == "spread" else None
    caches = [TreeCache(len(layers), 8, shares) for _ in range(3)]
    states = [[torch.randn(1, heads, 4, width, device=at) for width in widths] for heads, *widths, at in layers]
    for cache, slots in zip(caches, (None, None, torch.arange(4)), strict=True):
        cache.begin(torch.arange(4))
        cache.slots = slots if shares is None else None
        for layer, parts in enumerate(states):
            for found, part in zip(cache.write(layer, *parts), parts, strict=True):
                assert found.shape[:2] == part.shape[:2] and found.device == part.device
                torch.testing.assert_close(found[:, :, :4], part)
        cache.slots = None
        cache.end()
        if cache is caches[0] or shares is not None:
            cache.commit(1, [0, 2])
        else:
            cache.gather(torch.tensor([1]), torch.tensor([0, 2]))
            cache.commit(1, [0, 1])
        assert [len(buffer) for buffer in cache._buffers.values()] == rows
    for cache in caches:
        for layer, parts in enumerate(states):
            for found, part in zip(cache.write(layer, *(part[:, :, :0] for part in parts)), parts, strict=True):
                torch.testing.assert_close(found, part[:, :, [0, 1, 3]])
