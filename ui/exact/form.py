"""The settings form of the losslessness check, and the job that runs the check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequoia_core.decoding.tree_kinds import TREE_KINDS
from sequoia_core.trees.plain import branching_tree
from ui.exact.measurements import CheckSubject
from ui.session import predictions, session, tree_in_use
from ui.verifier_names import COMPARED_TREES

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector
    from sequoia_core.decoding.tree_policy import TreePolicy

SMALL_BRANCHING = (3, 2)
CHECKED_TREES = {
    "small": f"Branching {' × '.join(map(str, SMALL_BRANCHING))}",
    "use": "The tree in use",
} | COMPARED_TREES
JOB = "losslessness"


def check_subject(kind: str, prompt: str, sampling: tuple[float, float]) -> CheckSubject:
    """Collect everything the job needs, because a worker cannot access the session."""
    tree = branching_tree(SMALL_BRANCHING)
    source = CHECKED_TREES["small"].lower()
    policy: TreePolicy | None = None
    if kind == "use":
        tree, source = tree_in_use.current_tree(), tree_in_use.describe_source()
    elif kind == "specinfer_tree":
        from sequoia_core.decoding.tree_policy import SPECINFER_TREE

        policy = SPECINFER_TREE
        source = "SpecInfer's, five chains of eight"
        tree = policy.fixed
    elif kind in TREE_KINDS:
        policy = TREE_KINDS[kind].make(_calibrated_vector(kind, sampling), max_size=tree.size, max_depth=tree.depth)
        source = f"{CHECKED_TREES[kind].lower()} no larger than {source}"
    return CheckSubject(session.pair_name(), tree, source, prompt, *sampling, session.pair_spec(), policy)


def _calibrated_vector(kind: str, sampling: tuple[float, float]) -> AcceptanceVector | None:
    """Return the calibrated vector that a tree of this kind needs at a sampling setting; None if it needs none."""
    if not TREE_KINDS[kind].calibrated:
        return None
    vector = predictions.vector_for(predictions.conditions(*sampling))
    if vector is None or vector.calibration is None:
        raise ValueError(
            f"{kind} trees need an acceptance vector with a calibration at this temperature and top-p: "
            "measure one on the draft page"
        )
    return vector
