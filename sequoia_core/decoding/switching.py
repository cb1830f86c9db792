"""Trees that are exchanged while a run goes on: each step has the tree that is chosen when it begins.

The choice knows nothing of what the step will draw, so every verifier stays exact, as for a tree that never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..design.conditions import Conditions
from ..design.tree import TokenTree
from ..models.protocol import Session
from .compiled_drafting import CompiledDrafter
from .drafting import Draft, Drafter, LevelDrafter
from .tree_policy import FixedTree, TreePolicy
from .verifiers import VERIFIERS, Fill

FIXED = (CompiledDrafter, LevelDrafter)  # fastest first


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchingTree:
    """The policy that asks for a tree before every step.

    Args:
        choose: number of the step, from 0 -> its tree; called once for each step, on the thread that decodes. It must
            not look at anything that the step draws.
        max_size, max_depth, max_children: of any tree that may be chosen; a larger one ends the run with an error.
    """

    choose: Callable[[int], TokenTree]
    max_size: int
    max_depth: int
    max_children: int
    fixed = None

    @property
    def max_inner(self) -> int:
        return max(self.max_size - 1, 1)

    @property
    def verifiers(self) -> tuple[str, ...]:
        return tuple(VERIFIERS)

    def differences(self, wanted: Conditions) -> list[str]:
        return []  # who chooses the trees knows what for

    def check(self, tree: TokenTree) -> TokenTree:
        """Return a tree that fits.

        Raises:
            ValueError: naming the bound, what was found and what was expected.
        """
        children = int(tree.child_counts.max(initial=0))
        for name, found, most in (
            ("size", tree.size, self.max_size),
            ("depth", tree.depth, self.max_depth),
            ("children of one node", children, self.max_children),
        ):
            if found > most:
                raise ValueError(f"tree: found {name} {found}, expected at most {most}, for which this run has room")
        return tree


class SwitchingDrafter:
    """Drafts each step's tree as a run with this tree alone would; the drafter of the last tree is kept."""

    def __init__(self, session: Session, policy: SwitchingTree, *, fill: Fill, **options) -> None:
        self.session, self.policy, self.fill, self.options = session, policy, fill, options
        self._step = 0
        self._tree: TokenTree | None = None
        self._drafter: Drafter

    @staticmethod
    def supports(session: Session, policy: TreePolicy, fill: Fill) -> bool:
        return isinstance(policy, SwitchingTree)

    def grow(self, sequence: Sequence[int]) -> Draft:
        tree = self.policy.check(self.policy.choose(self._step))
        if tree != self._tree:
            self._tree, fixed = tree, FixedTree(tree)
            # A lone root has no level that compiled code could draft.
            kinds = FIXED if tree.size > 1 else (LevelDrafter,)
            kind = next(kind for kind in kinds if kind.supports(self.session, fixed, self.fill))
            self._drafter = kind(self.session, fixed, fill=self.fill, **self.options)
        self._step += 1
        return self._drafter.grow(sequence)

    def commit(self, draft: Draft, path: tuple[int, ...]) -> None:
        self._drafter.commit(draft, path)

    def wait(self) -> None:
        self.session.wait()
