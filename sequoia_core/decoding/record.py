"""The record of one decoding step, as pages stream it and tests list it. Shapes: n = tree nodes."""

from dataclasses import dataclass

from ..design.tree import TokenTree
from .explaining import NodeRows
from .node_facts import MarginalGains, Occurrence
from .walk import Trial, Walk


@dataclass(frozen=True, slots=True)
class StepDetails:
    """What a step records beyond what decoding needs.

    Attributes:
        probabilities: what both models gave every node's token.
        likely: how many of both models' most likely tokens at each node of the accepted path; above 0, also where
            looked-up nodes were found.
        left_out: how many of a growing tree's best left-out candidates, with what its nodes add and cost.
    """

    probabilities: bool = True
    likely: int = 0
    left_out: int = 0


PROBABILITIES, TOKENS_ONLY = StepDetails(), StepDetails(probabilities=False)


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One draft-verify-commit round.

    Attributes:
        tokens: token of every node [n], root first.
        outcomes: per node [n] "accepted", "rejected" or "not reached"; the root counts as accepted. What lies beyond
            the end of the text was not reached.
        draft_probs, target_probs: what each model gave the node's token after its parent [n]; 1 for the root. At
            temperature 0 these are the probabilities at temperature 1. Empty unless asked for (`StepDetails`).
        accepted_path: node ids, root first, up to the end of the text.
        bonus_token: sampled by the target after the last accepted node; None where the text ends with that node.
        new_tokens: what this step committed: accepted path, then bonus token, cut at EOS and at the number asked for.
        trials: every decision in order, with its arithmetic.
        draft_sec, verify_sec, walk_sec, commit_sec: wall time of the phases in seconds.
        finished: None, or why the run ends with this step: "eos", "length" or "context".
        cut_by_length: tokens that the step yielded beyond such a length; a mean of tokens per step should count them.
        path_rows: the most likely tokens of both models at each node of the accepted path; empty unless asked for.
        marginal_gains: what its nodes were expected to add and cost; None for a given tree, and unless asked for.
        occurrences: where each node was found in text already seen [n], None for the root and what was not; empty where
            none was looked up, and unless asked for.
        draft_widths: nodes that each pass of the draft read, where trees grow; empty for a tree that was given.
        read_wait_sec: of these, seconds waited for weights from a slower tier; 0 where they are in memory.
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


def outcomes_of(size: int, walk: Walk) -> tuple[str, ...]:
    """Return for each of `size` nodes whether the walk accepted, rejected or did not reach it."""
    outcomes = ["not reached"] * size
    for trial in walk.trials:
        outcomes[trial.node] = "rejected"
    for node in walk.path:
        outcomes[node] = "accepted"
    return tuple(outcomes)
