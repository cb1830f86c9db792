"""What a page may tell a run that is going on: to use another tree from the next step, or to wait before each step.

Written by pages, read by the worker between steps. No Streamlit here.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

from sequoia_core.design.tree import TokenTree

if TYPE_CHECKING:
    from sequoia_core.decoding.switching import SwitchingTree

LARGEST, DEEPEST, WIDEST = 64, 16, 32  # of trees that a run leaves room for, beyond its own
LOOK_AGAIN_SEC = 0.05  # how soon a waiting run sees that it was cancelled
LONGEST_WAIT_SEC = 120.0  # a run that nobody goes on with holds the engine, which others wait for
_HELD: weakref.WeakSet[Steering] = weakref.WeakSet()


class Steering:
    """The wishes for one run.

    Args:
        stepwise: wait for `next_step` after each step.

    Attributes:
        waiting_after: how many steps were taken, while the run waits for the next; else None.
        switched_at: the step from which another tree was used, from 0; source: where that tree comes from.
    """

    def __init__(self, *, stepwise: bool = False) -> None:
        self.stepwise = stepwise
        self.waiting_after: int | None = None
        self.switched_at: int | None = None
        self.source = ""
        self._lock = threading.Lock()
        self._wanted: tuple[TokenTree, str] | None = None
        self._tree: TokenTree | None = None
        self._policy: SwitchingTree | None = None
        self._go = threading.Event()

    def policy(self, tree: TokenTree, *, context: int, prompt: int, vocabulary: int) -> SwitchingTree:
        """Return the policy that begins with a tree and changes it when asked to; called by the worker.

        Args:
            context: positions that the models have; prompt: how many of them it takes; vocabulary: tokens.
        """
        from sequoia_core.decoding.switching import SwitchingTree

        self._tree = tree
        policy = SwitchingTree(
            choose=self._tree_of,
            max_size=max(tree.size, LARGEST),
            max_depth=max(tree.depth, min(DEEPEST, context - prompt - 1)),
            max_children=max(int(tree.child_counts.max(initial=0)), min(WIDEST, vocabulary)),
        )
        self._policy = policy
        return policy

    @property
    def room(self) -> tuple[int, int]:
        """The largest size and depth that `use` takes."""
        policy = self._policy
        return (LARGEST, DEEPEST) if policy is None else (policy.max_size, policy.max_depth)

    def use(self, tree: TokenTree, source: str) -> None:
        """Use a tree from the next step on.

        Args:
            source: where it comes from, for people.

        Raises:
            ValueError: when the run has no room for it.
        """
        if self._policy is not None:
            self._policy.check(tree)
        with self._lock:
            self._wanted = tree, source

    def _tree_of(self, step: int) -> TokenTree:
        with self._lock:
            if self._wanted is not None:
                (self._tree, self.source), self._wanted = self._wanted, None
                self.switched_at = step
            assert self._tree is not None, "policy() has given the first tree"
            return self._tree

    def next_step(self, after: int) -> None:
        """Let a run that waits after so many steps take one more; a press that comes late or twice does nothing."""
        if self.waiting_after == after:
            self._go.set()

    def run_on(self) -> None:
        """Let the run go on by itself."""
        self.stepwise = False
        self._go.set()

    def wait(self, after: int, cancel: threading.Event) -> None:
        """Wait for `next_step` where that is wanted; until cancelled, and no longer than `LONGEST_WAIT_SEC`.

        Args:
            after: steps that were taken.
        """
        if not self.stepwise:
            return
        self._go.clear()
        self.waiting_after = after
        _HELD.add(self)
        until = time.monotonic() + LONGEST_WAIT_SEC
        while self.stepwise and not cancel.is_set() and not self._go.wait(LOOK_AGAIN_SEC):
            if time.monotonic() > until:
                self.stepwise = False
        _HELD.discard(self)
        self.waiting_after = None


def release_all() -> None:
    """Let every waiting run of this process go on to its end, such as when its models are to be freed."""
    for held in list(_HELD):
        held.run_on()
