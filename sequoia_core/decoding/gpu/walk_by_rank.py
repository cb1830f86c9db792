"""The walk down a tree on the device, all nodes at once. n = nodes, K = most children of one node, V = vocabulary."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..plan import TreePlan
from ..residuals import Residuals, remaining_masses
from ..sampling import invert


class RankedTree(NamedTuple):
    """A tree as the walk reads it, on the device; all int64.

    Attributes:
        order: [n], the nodes, those with more children first.
        positions: [n], where each node is in `order`.
        children: [n, K], of the nodes in that order; 0 where there is none.
        rows: [n], which row of the draft's the nodes in that order have; any for those without children.
    """

    order: torch.Tensor
    positions: torch.Tensor
    children: torch.Tensor
    rows: torch.Tensor

    @classmethod
    def of(cls, plan: TreePlan, cache_positions: torch.Tensor, size: int, most_children: int) -> RankedTree:
        """Describe a tree on the CPU, padded to a size by unreachable nodes."""
        counts, firsts = (torch.zeros(size, dtype=torch.int64) for _ in range(2))
        counts[: plan.tree.size] = torch.from_numpy(plan.child_counts)
        firsts[: plan.tree.size] = torch.from_numpy(plan.first_children)
        order, ranks = counts.argsort(descending=True, stable=True), torch.arange(most_children)
        children = torch.where(ranks < counts[order, None], firsts[order, None] + ranks, 0)
        rows = torch.zeros(size, dtype=torch.int64)
        rows[: plan.tree.size] = cache_positions.clamp_min(0)
        return cls(order, order.argsort(), children, rows[order])

    def path(self, accepted: torch.Tensor, depth: int) -> torch.Tensor:
        """Return the path from the root by the first child accepted (bool [n, K]), int64 [depth + 1]."""
        chosen = self.children.gather(1, accepted.int().argmax(1, keepdim=True))[:, 0]
        following = torch.where(accepted.any(1), chosen, self.order)[self.positions]
        path = [torch.zeros_like(self.order[:1])]
        for _ in range(depth):
            path.append(following[path[-1]])
        return torch.cat(path)


class Decision(NamedTuple):
    """Attributes: path, int64 [depth + 1]; bonus, int64 [1]; masses, float64 [n, 2], R[s] and D[s] of every child."""

    path: torch.Tensor
    bonus: torch.Tensor
    masses: torch.Tensor


def follow_by_rank(tree: RankedTree, tokens: torch.Tensor, wanted: torch.Tensor, *, depth: int) -> Decision:
    """Descend to the child that equals the target's choice after each node; `tokens` and `wanted` int64 [n]."""
    accepted = (tokens[tree.children] == wanted[tree.order, None]) & (tree.children > 0)
    path = tree.path(accepted, depth)
    masses = torch.zeros(len(tokens), dtype=torch.float64, device=tokens.device)
    masses = masses.index_copy(0, tree.children.flatten(), accepted.flatten().double())
    return Decision(path, wanted[path[-1:]], torch.stack([masses, torch.ones_like(masses)], 1))


def walk_by_rank(
    tree: RankedTree,
    tokens: torch.Tensor,
    target: torch.Tensor,
    draft: torch.Tensor,
    uniforms: torch.Tensor,
    *,
    depth: int,
    first: torch.Tensor | None = None,
) -> Decision:
    """Descend by Sequoia's rule as long as a child is accepted, then sample the bonus token.

    Args:
        target: float64 [n, V], rows P of every node, summing to 1.
        draft: float64 [.., V], rows Q as `tree.rows` numbers them.
        uniforms: float64 [n] in [0, 1), for the trial of each node and, at the root, for the bonus token.
        first: as `draft`, the rows that first children were drawn from; None for Q.
    """
    residuals, masses = offers_by_rank(tree, tokens, target, draft, first)
    accepted = (uniforms * masses[:, 1] < masses[:, 0])[tree.children] & (tree.children > 0)
    path = tree.path(accepted, depth)
    cumulative = residuals.rows(tree.positions[path[-1:]]).cumsum(1)
    return Decision(path, invert(cumulative, uniforms[:1, None])[:, 0], masses)


def offers_by_rank(
    tree: RankedTree,
    tokens: torch.Tensor,
    target: torch.Tensor,
    draft: torch.Tensor,
    first: torch.Tensor | None = None,
) -> tuple[Residuals, torch.Tensor]:
    """Offer all children at every node, as if those before them had been rejected.

    Returns what the target has left once all are rejected, in the tree's order, and the masses of `Decision`.
    """
    there = tree.children > 0
    drawn = tokens[torch.where(there, tree.children, tree.children[:, :1])]
    rows = draft[tree.rows]
    residuals = Residuals(target[tree.order], rows, None if first is None else first[tree.rows])
    remaining = remaining_masses(rows, drawn, there)
    masses = torch.zeros(len(tokens), 2, dtype=torch.float64, device=tokens.device)
    for k in range(tree.children.shape[1]):
        few = slice(len(tokens) // (k + 1))  # no more nodes have so many children, and they come first
        mass = remaining[few, k : k + 1]
        wanted, offered = residuals.offer(drawn[few, k : k + 1], mass, k)
        offered = torch.where(offered > 0, offered, 1e-300)  # as `walk_tree` has it
        masses.index_copy_(0, tree.children[few, k], torch.cat([wanted, offered], 1))
        residuals.reject(mass, k, there[few, k : k + 1])
    return residuals, masses
