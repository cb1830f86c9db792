"""The conditions under which an acceptance vector was measured: a pair, sampling settings and a verifier."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from numbers import Integral, Real
from typing import Any

MEASURED_VERIFIERS = SEQUOIA, SPECINFER, TOPK = ("sequoia", "specinfer", "topk")
TRAVERSAL = "traversal"  # equivalent to Sequoia's rule at a single node, so it uses Sequoia's vectors
FIRST_UNCUT = "first child drawn without truncation"
MAX_NAME = 4_096  # maximum length of a model name in a file
MAX_RANKS = 4096  # maximum number of ranks in an acceptance vector


def verifier_measured_for(verifier: str) -> str:
    """Return the verifier whose acceptance vectors apply to this verifier."""
    return SEQUOIA if verifier == TRAVERSAL else verifier


def check_sampling(temperature: Any, top_p: Any = 1.0, top_k: Any = 0) -> None:
    """Raise ValueError if a sampling parameter is out of range."""
    if not (_is(Real, temperature) and 0 <= temperature <= 100):
        raise ValueError(f"temperature: found {repr(temperature)[:40]}, expected a number from 0 to 100")
    if not (_is(Real, top_p) and 0 < top_p <= 1):
        raise ValueError(f"top_p: found {repr(top_p)[:40]}, expected a number above 0 and at most 1")
    if not (_is(Integral, top_k) and top_k >= 0):
        raise ValueError(f"top_k: found {repr(top_k)[:40]}, expected 0 (off) or a positive integer")


def _is(number: type, value: Any) -> bool:
    return isinstance(value, number) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Conditions:
    """The settings under which acceptance was measured, or those of the run to predict.

    Args:
        target, draft: model names, as in `PairSpec.names`; the draft is "none" if there is no draft model.
        temperature, top_p, top_k: the target's sampling settings, as in `SamplingConfig`.
        verifier: one of `MEASURED_VERIFIERS`.
        declared: whether the user stated the conditions; False if a measurement recorded them.
        first_cut: whether top-p and top-k also truncate the distribution that a node's first child is drawn from; False
            in files written before this field existed.
    """

    target: str
    draft: str
    temperature: float
    top_p: float = 1.0
    verifier: str = "sequoia"
    top_k: int = 0
    declared: bool = False
    first_cut: bool = True

    def __post_init__(self) -> None:
        for role in ("target", "draft"):
            name = getattr(self, role)
            if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME:
                raise ValueError(f"{role}: found {str(name)[:40]!r}, expected a name of 1 to {MAX_NAME} characters")
        check_sampling(self.temperature, self.top_p, self.top_k)
        if self.verifier not in MEASURED_VERIFIERS:
            expected = ", ".join(MEASURED_VERIFIERS)
            raise ValueError(f"verifier: found {str(self.verifier)[:40]!r}, expected one of {expected}")
        for setting in ("declared", "first_cut"):
            value = getattr(self, setting)
            if not isinstance(value, bool):
                raise ValueError(f"{setting}: found {str(value)[:40]!r}, expected true or false")

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Conditions:
        if not {"target", "draft", "temperature"} <= set(fields) <= set(cls.__dataclass_fields__):
            raise ValueError(
                f"found {', '.join(str(key)[:40] for key in fields) or 'nothing'}, expected target, draft and "
                "temperature, and optionally top_p, top_k, verifier, declared and first_cut"
            )
        conditions = cls(**fields)
        return replace(conditions, first_cut=False) if conditions.cuts and "first_cut" not in fields else conditions

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> Conditions | None:
        """Return the conditions in a version 1 file's `meta`; None if a setting is missing or invalid."""
        settings = {key: meta[key] for key in cls.__dataclass_fields__ if key in meta and key != "declared"}
        try:
            return cls.from_json(settings) if {"top_p", "verifier"} <= set(settings) else None
        except ValueError:
            return None

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "first_cut" or self.cuts}

    @property
    def cuts(self) -> bool:
        """Whether top-p or top-k restricts sampling."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)

    @property
    def sampling(self) -> str:
        """A description of the sampling settings and verifier, such as "temperature 0.6, top-p 0.9, sequoia"."""
        if self.temperature == 0:
            return "temperature 0"
        parts = [f"temperature {self.temperature:g}"]
        if self.top_p < 1:
            parts.append(f"top-p {self.top_p:g}")
        if self.top_k:
            parts.append(f"top-k {self.top_k}")
        if self.cuts and not self.first_cut and self.verifier != TOPK:
            parts.append(FIRST_UNCUT)
        return ", ".join([*parts, self.verifier])

    def differences(self, wanted: Conditions) -> list[str]:
        """Return one phrase per difference from `wanted`, such as "temperature 0, not 0.6".

        The verifier, top-p and top-k have no effect at temperature 0, so they are ignored there.
        """
        settings = ["target", "draft", "temperature"]
        if self.temperature != 0 or wanted.temperature != 0:
            settings += ["top_p", "top_k", "verifier"]
        phrases = []
        for setting in settings:
            found = getattr(self, setting)
            expected = getattr(wanted, setting)
            same = math.isclose(found, expected, abs_tol=1e-9) if _is(Real, found) else found == expected
            if not same:
                phrases.append(f"{setting.replace('_', '-')} {found}, not {expected}")
        if not phrases and self.cuts and self.verifier != TOPK and self.first_cut != wanted.first_cut:
            found, expected = ("with", "without") if self.first_cut else ("without", "with")
            phrases.append(f"first child drawn {found} truncation, not {expected}")
        return phrases
