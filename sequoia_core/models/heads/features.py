"""The features that a draft head reads of its target, by position. n = tokens, H = the head's hidden size."""

import ctypes

import torch

from .eagle3 import Eagle3Head
from .mtp import MtpHead


class GivenFeatures:
    """What a session of a head keeps of the target's states."""

    def _take(self, head: Eagle3Head | MtpHead, given: torch.Tensor) -> None:
        """Keep features in `given`, zeros [capacity + 1, H]: by position, that of the token before."""
        self._head, self._given = head, given
        self._known = ctypes.c_int32(0)  # the last position that has one

    @torch.inference_mode()
    def see(self, start: int, states: torch.Tensor) -> None:
        """Take the target's states of the tokens from `start` on, see `protocol.Session`."""
        stop = min(start + 1 + len(states), len(self._given))
        if stop > start + 1:
            taken = states[: stop - start - 1].flatten(1).to(self._head.fc.weight)
            self._given[start + 1 : stop] = self._head.project(taken)
            self._known.value = stop - 1

    def _forget(self, start: int) -> None:
        """Forget what was known of tokens after `start`."""
        self._known.value = min(self._known.value, start)
