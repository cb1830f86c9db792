"""Per-node facts for display: marginal gains and costs, and occurrences in earlier text."""

from dataclasses import dataclass
from typing import NamedTuple


class LeftOut(NamedTuple):
    """A candidate that is not in the tree.

    Attributes:
        parent: the node that would be its parent.
        token: its token; None for the first child of a node that the draft did not read.
    """

    parent: int
    token: int | None
    gain: float


@dataclass(frozen=True, slots=True)
class MarginalGains:
    """The nodes' expected gains, in tokens, and their marginal costs.

    Attributes:
        gains: expected number of tokens that each node adds [n], equal to its acceptance probability; 1 for the root.
        costs: each node's marginal cost [n] if nodes are added in descending order of gain, measured in tokens that the
            run commits in the same time; None for the root or without costs.
        next_cost: marginal cost of one more node; None for a full tree or without costs.
        left_out: the best candidates outside the tree, best first; for a sampled tree, only the first children of nodes
            that the draft did not read.
    """

    gains: tuple[float, ...]
    costs: tuple[float | None, ...]
    next_cost: float | None
    left_out: tuple[LeftOut, ...]


class Occurrence(NamedTuple):
    """An occurrence of a node's token in earlier text, with its surroundings as token ids.

    Attributes:
        match: lower bound on the number of preceding tokens that agree with those before the node.
        earlier: whether it is in an earlier text rather than in the current one.
        before: a few tokens before it.
        after: the token itself and a few tokens after it.
        drafted: whether the draft model also assigned the token a probability.
    """

    match: int
    earlier: bool
    before: tuple[int, ...]
    after: tuple[int, ...]
    drafted: bool = False
