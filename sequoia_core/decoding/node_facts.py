"""What is told of single nodes of a step's tree: what they add and cost, and where their text was found."""

from dataclasses import dataclass
from typing import NamedTuple


class LeftOut(NamedTuple):
    """A candidate that is not in the tree.

    Attributes:
        parent: node of the tree below which it would be.
        token: None for the first child of a node that the draft did not read.
    """

    parent: int
    token: int | None
    gain: float


@dataclass(frozen=True, slots=True)
class MarginalGains:
    """Expected tokens of the nodes against their marginal costs.

    Attributes:
        gains: tokens that each node is expected to add [n]: the chance that it is accepted, 1 for the root.
        costs: the marginal cost of each node in order of gains [n], in tokens that the run commits in that time; None
            for the root and where no costs are counted.
        next_cost: the same for one node more than the tree has; None where it is full or no costs are counted.
        left_out: the best candidates that are not in the tree, best first; of a sampled tree only first children of
            nodes that were not read.
    """

    gains: tuple[float, ...]
    costs: tuple[float | None, ...]
    next_cost: float | None
    left_out: tuple[LeftOut, ...]


class Occurrence(NamedTuple):
    """Where a token was found: what stood around it, as token ids.

    Attributes:
        match: how many tokens before it are those that a node had before it, at least.
        earlier: whether in an earlier text, not in the one under way.
        before: some tokens before it.
        after: the token itself and some that followed it.
        drafted: whether the draft model gave it a probability too.
    """

    match: int
    earlier: bool
    before: tuple[int, ...]
    after: tuple[int, ...]
    drafted: bool = False
