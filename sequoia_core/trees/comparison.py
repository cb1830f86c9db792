"""The loss from using a tree that was planned for another vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..acceptance.vector import AcceptanceVector
from .optimal import expected_tokens, optimal_tree

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False)
class Regret:
    """The tokens per step lost when the tree designed for one of k vectors is used under another.

    Args:
        lost: float64 [k, k]; `lost[i, j]` is the loss of vector i's best tree under vector j.
        best: float64 [k], tokens per step of each vector's best tree.
    """

    lost: np.ndarray
    best: np.ndarray

    @property
    def share(self) -> np.ndarray:
        """The loss as a share of the actual vector's entry in `best`, float64 [k, k]."""
        return self.lost / self.best[None, :]

    @property
    def worst(self) -> tuple[int, int]:
        """The (tree, vector) pair with the largest loss."""
        tree, vector = np.unravel_index(int(self.lost.argmax()), self.lost.shape)
        return int(tree), int(vector)

    @property
    def safest(self) -> int:
        """The index of the tree whose largest loss is smallest."""
        return int(self.lost.max(axis=1).argmin())

    @property
    def mean(self) -> float:
        """The loss averaged over all pairs of different vectors."""
        return float(self.lost.sum()) / (len(self.best) * (len(self.best) - 1))

    def to_frame(self, names: Sequence[str]) -> pd.DataFrame:
        """Return the losses, with one row per tree and one column per vector."""
        import pandas as pd

        return pd.DataFrame(self.lost, pd.Index(names, name="tree for \\ used under"), names)


def regret_matrix(vectors: Sequence[AcceptanceVector], *, size: int, depth: int) -> Regret:
    """Find the best tree of this size and maximum depth for each vector, and evaluate it under all vectors."""
    # A tree may use ranks beyond the end of another vector; these get probability 0.
    ranks = max(len(vector) for vector in vectors)
    padded = [AcceptanceVector(np.pad(vector.probs, (0, ranks - len(vector)))) for vector in vectors]
    trees = [optimal_tree(vector, size=size, depth=depth) for vector in padded]
    tokens = np.array([[expected_tokens(tree, vector) for vector in padded] for tree in trees])
    best = tokens.diagonal().copy()
    return Regret(lost=np.maximum(best - tokens, 0.0), best=best)
