"""Walks down drafted trees by `sampling_ops.c`; `decoding.walk` does the same without compiled code. V = vocabulary."""

import numpy as np
import torch

from . import sampling_ops
from .sampling_ops import RULES, TRAVERSAL, address, array_address, granted, lines_address


class Walker:
    """Walks down trees, in one call each; its buffers are kept for the next tree."""

    def __init__(self) -> None:
        self._shape: tuple[np.ndarray, ...] = ()
        self._size = 0

    def take(
        self,
        firsts: np.ndarray,
        counts: np.ndarray,
        cache_positions: np.ndarray,
        looked_up: np.ndarray | None = None,
    ) -> None:
        """Take the tree of the next walks.

        Args:
            firsts, counts: int64 [n], each node's first child and how many it has.
            cache_positions: int64 [n], as in `DraftTree`, which row of the draft's each node has; not read for leaves.
            looked_up: int64 [n], as in `DraftTree`.
        """
        shape = firsts, counts, cache_positions
        count = len(firsts)
        self._kept = looked_up
        self._looked_up = None if looked_up is None else array_address(looked_up, np.int64, count)
        if len(firsts) > self._size:
            self._size = size = len(firsts)
            self._path, self._nodes = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
            self._masses, self._ends = np.empty((size, 2)), np.empty(3, dtype=np.int64)
            self._results = [
                array.__array_interface__["data"][0] for array in (self._path, self._nodes, self._masses, self._ends)
            ]
        if len(self._shape) != 3 or any(a is not b for a, b in zip(self._shape, shape, strict=True)):
            self._shape = shape
            addresses = (array_address(array, np.int64, count) for array in shape)
            self._firsts, self.counts, self._cache_positions = addresses

    def greedily(self, logits: torch.Tensor, tokens: torch.Tensor) -> tuple[list[int], int, list[int]] | None:
        """Follow the target's most likely tokens, as `decoding.walk.walk_greedily` does.

        Args:
            logits: float32 [n, V].
            tokens: int64 [n].

        Returns:
            The path, the token after it and the nodes compared; None when a row on the way was not finite.
        """
        path, nodes, _, ends = self._results
        count = self._checked_count(logits)
        fine = sampling_ops.compiled().rows_follow(
            count, logits.data_ptr(), logits.stride(0), logits.shape[1], self._firsts, self.counts,
            address(tokens, torch.int64, count), path, nodes, ends,
        )  # fmt: skip
        granted(fine)
        if not fine:
            return None
        length, trials, bonus = self._ends.tolist()
        return self._path[:length].tolist(), bonus, self._nodes[:trials].tolist()

    def sampled(
        self,
        rule: str,
        logits: torch.Tensor,
        temperature: float,
        tokens: torch.Tensor,
        draft: torch.Tensor,
        uniforms: torch.Tensor,
    ) -> tuple[list[int], int, list[tuple[int, float, float, float]]] | None:
        """Decide by a rule, as `decoding.walk.walk_tree` or `walk_from_leaves` does.

        Args:
            rule: one of RULES.
            logits: float32 [n, V], the target's.
            tokens: int64 [n].
            draft: float32 [.., V], the draft's rows.
            uniforms: float64 [n] in [0, 1).

        Returns:
            The path, the bonus token and every trial (node, uniform, target mass, draft mass); None when a row on the
            way was not finite.
        """
        count, size = self._checked_count(logits), logits.shape[1]
        arguments = (
            count, logits.data_ptr(), logits.stride(0), size, sampling_ops.inverse(temperature), self._firsts,
            self.counts, self._cache_positions,
            address(draft, torch.float32, len(draft), size if len(draft) else draft.shape[-1]),
            len(draft), address(tokens, torch.int64, count), address(uniforms, torch.float64, count), *self._results,
        )  # fmt: skip
        if rule == TRAVERSAL:
            fine = sampling_ops.compiled().rows_traverse(*arguments)
        else:
            fine = sampling_ops.compiled().rows_walk(RULES.index(rule), *arguments, self._looked_up)
        granted(fine)
        if not fine:
            return None
        length, trials, bonus = self._ends.tolist()
        nodes, masses = self._nodes[:trials].tolist(), self._masses[:trials].tolist()
        drawn = zip(nodes, uniforms.numpy()[:trials].tolist(), masses, strict=True)
        return self._path[:length].tolist(), bonus, [(node, uniform, *pair) for node, uniform, pair in drawn]

    def _checked_count(self, logits: torch.Tensor) -> int:
        """Return the nodes of the tree; ValueError unless each has a row of logits."""
        lines_address(logits)
        count = len(self._shape[0])
        if len(logits) != count:
            raise ValueError(f"found {len(logits)} rows of logits, expected one for each of {count} nodes")
        return count
