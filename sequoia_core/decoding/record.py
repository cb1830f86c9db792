"""The record of one decoding step. n = number of tree nodes."""

from dataclasses import dataclass

from ..trees.tree import TokenTree
from .explaining import NodeRows
from .node_facts import MarginalGains, Occurrence
from .walk import Trial, Walk


@dataclass(frozen=True, slots=True)
class StepDetails:
    """Optional details to record with each step, for display.

    Attributes:
        probabilities: whether to record both models' probabilities of each node's token.
        likely: number of each model's most likely tokens to record at each node of the accepted path. If positive, the
            occurrences of looked-up nodes are also recorded.
        left_out: number of the best candidates outside a growing tree to record; if positive, the tree's marginal gains
            are also recorded.
    """

    probabilities: bool = True
    likely: int = 0
    left_out: int = 0


PROBABILITIES = StepDetails()
TOKENS_ONLY = StepDetails(probabilities=False)


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One draft-verify-commit round.

    Attributes:
        tokens: each node's token [n], root first.
        outcomes: "accepted", "rejected" or "not reached" for each node [n]; the root counts as accepted, and nodes
            beyond the end of the text count as not reached.
        draft_probs, target_probs: each model's probability of a node's token given its parent [n]; 1 for the root. At
            temperature 0, these are the probabilities at temperature 1. Empty unless requested (`StepDetails`).
        accepted_path: node ids, root first, up to the end of the text.
        bonus_token: token sampled from the target after the last accepted node; None if the text ends with that node.
        new_tokens: tokens committed by this step: the accepted path and the bonus token, truncated at EOS and at the
            length limit.
        trials: every decision in order, with the numbers it was based on.
        draft_sec, verify_sec, walk_sec, commit_sec: wall time of each phase, in seconds.
        finished: why the run ends with this step: "eos", "length" or "context"; None if it continues.
        cut_by_length: number of tokens dropped at the length limit; a mean number of tokens per step should include
            them.
        path_rows: the most likely tokens of both models at each node of the accepted path; empty unless requested.
        marginal_gains: each node's expected gain and cost; None for a fixed tree or if not requested.
        occurrences: each node's match in earlier text [n], None for the root and for nodes without a match; empty
            without lookup or if not requested.
        draft_widths: number of nodes read by each draft pass of a growing tree; empty for a fixed tree.
        read_wait_sec: seconds of these phases spent waiting for streamed weights; 0 if all weights are in memory.
    """

    index: int
    tree: TokenTree
    tokens: tuple[int, ...]
    outcomes: tuple[str, ...]
    draft_probs: tuple[float, ...]
    target_probs: tuple[float, ...]
    accepted_path: tuple[int, ...]
    bonus_token: int | None
    new_tokens: list[int]
    trials: tuple[Trial, ...]
    draft_sec: float
    verify_sec: float
    walk_sec: float
    commit_sec: float
    finished: str | None = None
    cut_by_length: int = 0
    read_wait_sec: float = 0.0
    path_rows: tuple[NodeRows, ...] = ()
    marginal_gains: MarginalGains | None = None
    occurrences: tuple[Occurrence | None, ...] = ()
    draft_widths: tuple[int, ...] = ()

    @property
    def seconds(self) -> float:
        return self.draft_sec + self.verify_sec + self.walk_sec + self.commit_sec


def node_outcomes(size: int, walk: Walk) -> tuple[str, ...]:
    """Return "accepted", "rejected" or "not reached" for each of `size` nodes."""
    outcomes = ["not reached"] * size
    for trial in walk.trials:
        outcomes[trial.node] = "rejected"
    for node in walk.path:
        outcomes[node] = "accepted"
    return tuple(outcomes)
