"""What the whole chain finds, moment by moment: the worker adds frames, and the page shows them as a film."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ui.token_tree import drawn_shape

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree

RANKS = 8  # guesses shown


class Film:
    """Frames of passes timed, prompts measured and trees planned, each with its second."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.frames: list[dict[str, Any]] = []
        self._tree: TokenTree | None = None

    def now(self) -> float:
        return time.monotonic() - self.began

    def _add(self, **facts: Any) -> None:
        self.frames.append({"at": self.now(), **facts})

    def timed(self, nodes: int, sec: float) -> None:
        """Note a pass of the target over the nodes of a tree."""
        self._add(nodes=nodes, sec=sec)

    def measured(self, vector: AcceptanceVector, prompts: int) -> None:
        """Note what is known after so many prompts, and what it makes of the tree planned last."""
        self._add(probs=vector.probs[:RANKS], prompts=prompts, **self._chances(vector))

    def planned(self, tree: TokenTree, vector: AcceptanceVector, profile: HardwareProfile, *, last: bool) -> None:
        """Note a plan; the last one is the tree to decode with."""
        from sequoia_core.design.prediction import predict

        self._tree, found = tree, predict(tree, vector, profile)
        self._add(
            tree=tree.parents, last=last, tokens=found.tokens_per_step.value, speedup=found.speedup.value,
            **self._chances(vector),
        )  # fmt: skip

    def _chances(self, vector: AcceptanceVector) -> dict[str, Any]:
        from sequoia_core.design.optimal_trees import node_scores

        return {} if self._tree is None else {"chance": node_scores(self._tree, vector)}

    def told(self) -> dict[str, Any]:
        """Return all frames so far, and the shapes of their trees, for the browser."""
        from sequoia_core.studies.step_timers import even_tree

        frames = list(self.frames)
        sizes = sorted({frame["nodes"] for frame in frames if "nodes" in frame})
        trees = [frame["tree"] for frame in frames if "tree" in frame]
        shapes = [*(even_tree(size).parents for size in sizes), *trees]
        return {
            "frames": [{name: value for name, value in frame.items() if name != "tree"} for frame in frames],
            "sizes": sizes,  # of the first shapes; the others are the plans, in their order
            "shapes": [drawn_shape(index, parents.tolist()) for index, parents in enumerate(shapes)],
            "now": self.now(),
        }
