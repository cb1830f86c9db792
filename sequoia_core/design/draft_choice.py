"""Which draft to use with a target, each planned with its own acceptance and costs."""

from collections.abc import Mapping
from dataclasses import dataclass

from .acceptance import AcceptanceVector
from .planning import pair_mismatches, plan_tree
from .prediction import Prediction, predict
from .profile import HardwareProfile
from .tree import TokenTree

SHARED_FIELDS = ("device", "dtype", "context")  # profiles must agree in these if their drafts are compared


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """What one draft would do with its best tree.

    Attributes:
        tree: its best one; prediction: what decoding with that does.
        first_guess: p_1; draft_cost: c.
    """

    name: str
    tree: TokenTree
    prediction: Prediction
    first_guess: float
    draft_cost: float

    @property
    def tokens_per_sec(self) -> float:
        return 1.0 / self.prediction.sec_per_token


def compare_drafts(candidates: Mapping[str, tuple[AcceptanceVector, HardwareProfile]]) -> list[DraftPlan]:
    """Plan every candidate by name, and return the fastest first."""
    plans, first = [], None
    for name, (acceptance, profile) in candidates.items():
        mismatches = pair_mismatches(acceptance, profile)
        if mismatches:
            raise ValueError(f"{name}: {mismatches[0]}")
        assert acceptance.holds_for is not None
        same = {"target": acceptance.holds_for.target, "sampling": acceptance.holds_for.sampling}
        same |= {key: getattr(profile, key) for key in SHARED_FIELDS} | {"offload": profile.offload}
        first = first or same
        for key, value in same.items():
            if value != first[key]:
                raise ValueError(
                    f"{name}: {key}: found {str(value)[:60]}, expected {str(first[key])[:60]} as the first"
                )
        tree = plan_tree(acceptance, profile)
        plan = predict(tree, acceptance, profile)
        plans.append(DraftPlan(name, tree, plan, float(acceptance.probs[0]), profile.c))
    return sorted(plans, key=lambda plan: -plan.prediction.speedup.value)
