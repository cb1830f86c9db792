"""The whole chain's progress as a film: the worker adds frames, and the page plays them."""

import time
from typing import Any

from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree
from sequoia_core.planning.prediction import predict
from sequoia_core.trees.optimal import node_scores
from ui.token_tree import drawn_shape

SHOWN_RANKS = 8


class Film:
    """Frames of timed passes, measured prompts and planned trees, each with its time in seconds."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.frames: list[dict[str, Any]] = []
        self._tree: TokenTree | None = None

    def now(self) -> float:
        return time.monotonic() - self.began

    def _add(self, **facts: Any) -> None:
        self.frames.append({"at": self.now(), **facts})

    def timed(self, nodes: int, sec: float) -> None:
        """Add a timed target pass over a tree of `nodes` nodes."""
        self._add(nodes=nodes, sec=sec)

    def measured(self, vector: AcceptanceVector, prompts: int) -> None:
        """Add the acceptance measured after `prompts` prompts, and its effect on the latest planned tree."""
        self._add(probs=vector.probs[:SHOWN_RANKS], prompts=prompts, **self._chances(vector))

    def planned(self, tree: TokenTree, vector: AcceptanceVector, profile: HardwareProfile, *, last: bool) -> None:
        """Add a planned tree; `last` marks the tree to decode with."""

        self._tree = tree
        prediction = predict(tree, vector, profile)
        tokens = prediction.tokens_per_step.value
        speedup = prediction.speedup.value
        self._add(tree=tree.parents, last=last, tokens=tokens, speedup=speedup, **self._chances(vector))

    def _chances(self, vector: AcceptanceVector) -> dict[str, Any]:

        return {} if self._tree is None else {"chance": node_scores(self._tree, vector)}

    def to_json(self) -> dict[str, Any]:
        """Return all frames so far and the shapes of their trees, in the browser's format."""
        from sequoia_core.measuring.step_timers import even_tree

        frames = list(self.frames)
        sizes = sorted({frame["nodes"] for frame in frames if "nodes" in frame})
        trees = [frame["tree"] for frame in frames if "tree" in frame]
        shapes = [*(even_tree(size).parents for size in sizes), *trees]
        return {
            "frames": [{name: value for name, value in frame.items() if name != "tree"} for frame in frames],
            "sizes": sizes,  # sizes of the first shapes; the planned trees' shapes follow in order
            "shapes": [drawn_shape(index, parents.tolist()) for index, parents in enumerate(shapes)],
            "now": self.now(),
        }
