"""What a tree designed for one acceptance vector loses where another vector holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .acceptance import AcceptanceVector
from .optimal_trees import expected_tokens, optimal_tree

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False)
class Regret:
    """What trees lose where another vector holds than the one they were designed for.

    Args:
        lost: float64 [m, m]; [i, j] = tokens per step that vector i's best tree loses under vector j.
        best: float64 [m], what each vector's own best tree yields.
    """

    lost: np.ndarray
    best: np.ndarray

    @property
    def share(self) -> np.ndarray:
        """The loss as a part of what the vector's own tree yields, float64 [m, m]."""
        return self.lost / self.best[None, :]

    @property
    def worst(self) -> tuple[int, int]:
        """The pair (tree, vector) that loses the most."""
        tree, vector = np.unravel_index(int(self.lost.argmax()), self.lost.shape)
        return int(tree), int(vector)

    @property
    def safest(self) -> int:
        """The tree whose largest loss is smallest."""
        return int(self.lost.max(axis=1).argmin())

    @property
    def mean(self) -> float:
        """The loss averaged over all pairs of different vectors."""
        pairs = len(self.best) * (len(self.best) - 1)
        return float(self.lost.sum() / pairs) if pairs else 0.0

    def to_frame(self, names: Sequence[str]) -> pd.DataFrame:
        """Return the losses: a row for each tree, a column for each vector that holds."""
        import pandas as pd

        return pd.DataFrame(self.lost, pd.Index(names, name="tree for \\ used under"), names)


def regret_matrix(vectors: Sequence[AcceptanceVector], *, size: int, depth: int) -> Regret:
    """Evaluate the best tree, of `size` nodes and at most `depth`, of each vector under every other."""
    if not vectors:
        raise ValueError("vectors: found none, expected at least one")
    ranks = max(len(vector) for vector in vectors)  # ranks that a vector lacks have probability 0, but may be drafted
    padded = [AcceptanceVector(np.pad(vector.probs, (0, ranks - len(vector)))) for vector in vectors]
    trees = [optimal_tree(vector, size=size, depth=depth) for vector in padded]
    tokens = np.array([[expected_tokens(tree, vector) for vector in padded] for tree in trees])
    return Regret(lost=np.maximum(np.diag(tokens)[None, :] - tokens, 0.0), best=np.diag(tokens).copy())
