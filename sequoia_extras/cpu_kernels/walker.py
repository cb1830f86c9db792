"""Walks through drafted trees, using `sampling_ops.c`; `decoding.walk` does the same in Python."""

import numpy as np
import torch
from torch import Tensor

from . import sampling_ops
from .sampling_ops import RULES, TRAVERSAL, array_address, check_status, rows_address, tensor_address


class Walker:
    """Walks through trees with one C call per tree, reusing its buffers. V = vocabulary size."""

    def __init__(self) -> None:
        self._arrays: tuple[np.ndarray, ...] = ()
        self._size = 0

    def set_tree(
        self,
        first_children: np.ndarray,
        child_counts: np.ndarray,
        cache_positions: np.ndarray,
        looked_up: np.ndarray | None = None,
    ) -> None:
        """Set the tree for subsequent walks.

        Args:
            first_children, child_counts: int64 [n], each node's first child and number of children.
            cache_positions: int64 [n], index of each node's draft row, as in `DraftTree`; ignored for leaves.
            looked_up: int64 [n], as in `DraftTree`.
        """
        count = len(first_children)
        arrays = (first_children, child_counts, cache_positions)
        # Keep a reference, so that the address stays valid.
        self._looked_up = looked_up
        self._looked_up_address = None if looked_up is None else array_address(looked_up, np.int64, count)
        if count > self._size:
            self._allocate(count)
        if not self._arrays or any(a is not b for a, b in zip(self._arrays, arrays, strict=True)):
            addresses = [array_address(array, np.int64, count) for array in arrays]
            self._arrays = arrays
            self._first_children, self._child_counts, self._cache_positions = addresses

    def _allocate(self, size: int) -> None:
        self._size = size
        self._path = np.empty(size, dtype=np.int64)
        self._nodes = np.empty(size, dtype=np.int64)
        self._masses = np.empty((size, 2))
        self._ends = np.empty(3, dtype=np.int64)
        arrays = (self._path, self._nodes, self._masses, self._ends)
        self._results = [array.__array_interface__["data"][0] for array in arrays]

    def follow_greedily(self, logits: Tensor, tokens: Tensor) -> tuple[list[int], int, list[int]] | None:
        """Follow the target's most likely tokens, like `decoding.walk.walk_greedily`.

        Args:
            logits: float32 [n, V], the target's logits after each node.
            tokens: int64 [n], the nodes' tokens.

        Returns:
            The path, the bonus token and the compared nodes; None if a visited row was not finite.
        """
        path, nodes, _, ends = self._results
        count = self._checked_count(logits)
        is_finite = sampling_ops.sampling_kernels().rows_follow(
            count,
            logits.data_ptr(),
            logits.stride(0),
            logits.shape[1],
            self._first_children,
            self._child_counts,
            tensor_address(tokens, torch.int64, count),
            path,
            nodes,
            ends,
        )
        check_status(is_finite)
        if not is_finite:
            return None
        length, trials, bonus = self._ends.tolist()
        return self._path[:length].tolist(), bonus, self._nodes[:trials].tolist()

    def walk_sampled(
        self, rule: str, logits: Tensor, temperature: float, tokens: Tensor, draft: Tensor, uniforms: Tensor
    ) -> tuple[list[int], int, list[tuple[int, float, float, float]]] | None:
        """Walk according to a verification rule, like `decoding.walk.walk_tree` or `walk_from_leaves`.

        Args:
            rule: one of RULES.
            logits: float32 [n, V], the target's logits after each node.
            tokens: int64 [n], the nodes' tokens.
            draft: float32 [.., V], the draft's rows.
            uniforms: float64 [n] in [0, 1), one number per node.

        Returns:
            The path, the bonus token and all trials (node, uniform, target mass, draft mass); None if a visited row
            was not finite.
        """
        count = self._checked_count(logits)
        size = logits.shape[1]
        arguments = (
            count,
            logits.data_ptr(),
            logits.stride(0),
            size,
            sampling_ops.inverse_temperature(temperature),
            self._first_children,
            self._child_counts,
            self._cache_positions,
            tensor_address(draft, torch.float32, len(draft), size if len(draft) else draft.shape[-1]),
            len(draft),
            tensor_address(tokens, torch.int64, count),
            tensor_address(uniforms, torch.float64, count),
            *self._results,
        )
        kernels = sampling_ops.sampling_kernels()
        if rule == TRAVERSAL:
            is_finite = kernels.rows_traverse(*arguments)
        else:
            is_finite = kernels.rows_walk(RULES.index(rule), *arguments, self._looked_up_address)
        check_status(is_finite)
        if not is_finite:
            return None
        length, count, bonus = self._ends.tolist()
        columns = (self._nodes[:count], uniforms.numpy()[:count], *self._masses[:count].T)
        trials = list(zip(*(column.tolist() for column in columns), strict=True))
        return self._path[:length].tolist(), bonus, trials

    def _checked_count(self, logits: Tensor) -> int:
        """Return the number of nodes; ValueError unless each node has a row of logits."""
        rows_address(logits)
        count = len(self._arrays[0])
        if len(logits) != count:
            raise ValueError(f"found {len(logits)} logit rows, expected one for each of {count} nodes")
        return count
