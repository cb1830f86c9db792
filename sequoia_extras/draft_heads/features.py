"""Features that a draft head computes from its target's states, by position. H = the head's hidden size."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .eagle3 import Eagle3Head
from .mtp import MtpHead


class TargetFeatures:
    """Mixin for a head's sessions that stores the features of committed tokens.

    Attributes:
        _features: [capacity + 1, H], the feature of the previous token at each position.
        _last_known: the last position with a feature, as an int32 that C reads.
    """

    def _init_features(self, head: Eagle3Head | MtpHead, features: Tensor) -> None:
        self._head = head
        self._features = features
        self._last_known = ctypes.c_int32(0)

    @torch.inference_mode()
    def observe_states(self, start: int, states: Tensor) -> None:
        """Store features, given the target's states at positions `start` and above (see `protocol.Session`)."""
        stop = min(start + 1 + len(states), len(self._features))
        if stop > start + 1:
            known = states[: stop - start - 1].flatten(1).to(self._head.fc.weight)
            self._features[start + 1 : stop] = self._head.project(known)
            self._last_known.value = stop - 1

    def commit(self, start: int, slots: Sequence[int]) -> None:
        """Drop all drafted tokens except the root, and the features at positions above `start`."""
        session: Any = super()
        session.commit(start, slots[:1])
        self._last_known.value = min(self._last_known.value, start)
