"""What an acceptance vector holds for: one pair, sampled and verified in one way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from numbers import Integral, Real
from typing import Any

VERIFIERS = SEQUOIA, SPECINFER, TOPK = ("sequoia", "specinfer", "topk")  # what each does: decoding.verifiers
TRAVERSAL = "traversal"  # verifies from the leaves upwards; what one node accepts is measured as Sequoia's
FIRST_UNCUT = "first child drawn uncut"
MAX_NAME = 4_096  # characters of a model's name in a file
MAX_RANKS = 4096  # of an acceptance vector


def measured_as(verifier: str) -> str:
    """Return the verifier whose vectors apply to this one."""
    return SEQUOIA if verifier == TRAVERSAL else verifier


def check_sampling(temperature: Any, top_p: Any = 1.0, top_k: Any = 0) -> None:
    """Refuse what is no way of sampling."""
    if not (_is(Real, temperature) and 0 <= temperature <= 100):
        raise ValueError(f"temperature: found {repr(temperature)[:40]}, expected a number from 0 to 100")
    if not (_is(Real, top_p) and 0 < top_p <= 1):
        raise ValueError(f"top_p: found {repr(top_p)[:40]}, expected a number above 0 and at most 1")
    if not (_is(Integral, top_k) and top_k >= 0):
        raise ValueError(f"top_k: found {repr(top_k)[:40]}, expected 0 (off) or a positive count")


def _is(kind: type, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Conditions:
    """The settings under which acceptance was measured, or under which someone is about to decode.

    Args:
        target, draft: the models' names, as `PairSpec.names` has them; "none" is no draft.
        temperature, top_p, top_k: of the target's sampling, as in `SamplingConfig`.
        verifier: "sequoia", "specinfer" or "topk".
        declared: whether a person said so, rather than the measurement.
        first_cut: whether top-p and top-k also cut the row that a node's first child is drawn from; false in files that
            do not say it.
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
        if self.verifier not in VERIFIERS:
            raise ValueError(f"verifier: found {str(self.verifier)[:40]!r}, expected one of {', '.join(VERIFIERS)}")
        for setting in ("declared", "first_cut"):
            if not isinstance(value := getattr(self, setting), bool):
                raise ValueError(f"{setting}: found {str(value)[:40]!r}, expected true or false")

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Conditions:
        unknown = sorted(set(fields) - set(cls.__dataclass_fields__))
        missing = sorted({"target", "draft", "temperature"} - set(fields))
        if unknown or missing:
            raise ValueError(
                f"found {', '.join(str(key)[:40] for key in fields) or 'nothing'}, expected target, draft and "
                "temperature, and perhaps top_p, top_k, verifier, declared and first_cut"
            )
        conditions = cls(**fields)
        return replace(conditions, first_cut=False) if conditions.cuts and "first_cut" not in fields else conditions

    @classmethod
    def recorded_in(cls, meta: Mapping[str, Any]) -> Conditions | None:
        """Return the conditions in a version 1 file's `meta`; None where a setting is missing or wrong."""
        kept = {key: meta[key] for key in cls.__dataclass_fields__ if key in meta and key != "declared"}
        try:
            return cls.from_json(kept) if {"top_p", "verifier"} <= set(kept) else None
        except ValueError:
            return None

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "first_cut" or self.cuts}

    @property
    def cuts(self) -> bool:
        """Whether there is anything that top-p and top-k cut."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)

    @property
    def sampling(self) -> str:
        """The way of sampling and verifying in words, such as "temperature 0.6, top-p 0.9, sequoia"."""
        if self.temperature == 0:
            return "temperature 0"
        warped = [f"temperature {self.temperature:g}"]
        warped += [f"top-p {self.top_p:g}"] if self.top_p < 1 else []
        warped += [f"top-k {self.top_k}"] if self.top_k else []
        warped += [FIRST_UNCUT] if self.cuts and not self.first_cut and self.verifier != TOPK else []
        return ", ".join([*warped, self.verifier])

    def differences(self, wanted: Conditions) -> list[str]:
        """Return the differences from `wanted`, one phrase each, such as "temperature 0, not 0.6".

        At temperature 0 verifier, top-p and top-k make no difference.
        """
        settings = ["target", "draft", "temperature"]
        if self.temperature != 0 or wanted.temperature != 0:
            settings += ["top_p", "top_k", "verifier"]
        parts = []
        for setting in settings:
            here, there = getattr(self, setting), getattr(wanted, setting)
            same = math.isclose(here, there, abs_tol=1e-9) if isinstance(here, int | float) else here == there
            if not same:
                parts.append(f"{setting.replace('_', '-')} {here}, not {there}")
        if not parts and self.cuts and self.verifier != TOPK and self.first_cut != wanted.first_cut:
            parts.append("first child drawn uncut, not cut" if wanted.first_cut else "first child drawn cut, not uncut")
        return parts
