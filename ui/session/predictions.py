"""Whether the current vector and profile apply to the current pair on this machine, and what they predict."""

from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple

from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree
from sequoia_core.acceptance.conditions import Conditions, verifier_measured_for
from sequoia_core.models.default_dtype import default_dtype
from sequoia_core.models.installation import installation_id
from sequoia_core.models.other_load import load_sentence
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.planning.prediction import Prediction
from ui.session import core_cache, machine, session
from ui.session.gguf_files import is_gguf
from ui.session.state import state


def conditions(temperature: float = 0.0, top_p: float = 1.0, verifier: str = "sequoia") -> Conditions:
    """Return the conditions of decoding with the current pair at these settings."""
    names = session.pair_spec().names
    return Conditions(*names, float(temperature), float(top_p), verifier_measured_for(verifier))


def vector_for(wanted: Conditions) -> AcceptanceVector | None:
    """Return the first vector measured under these conditions, trying the current one first; None if there is none."""
    return next(
        (vector for vector in (session.acceptance(), *session.vectors().values()) if not vector.differences(wanted)),
        None,
    )


def profile_mismatches() -> list[str]:
    """Return the reasons why the current profile does not apply to the current pair on this machine."""
    hardware = session.profile()
    if hardware is None:
        return ["no hardware profile"]
    return hardware.differences(
        **pair_in_use(),
        device=machine.device_name(),
        instructions=None if machine.has_gpu() else machine.instructions(),
        installation=installation_id(),
    )


def vector_is_for_another_pair(models: tuple[str, str] | None = None) -> bool:
    """Return whether the current vector was measured on models other than these, by default the current pair."""
    holds_for = session.acceptance().holds_for
    return holds_for is not None and (holds_for.target, holds_for.draft) != (models or session.pair_spec().names)


def profile_is_for_another_pair(models: tuple[str, str] | None = None) -> bool:
    """Return whether the current profile was measured on models other than these, by default the current pair."""
    hardware = session.profile()
    names = (None, None) if hardware is None else session.models_of(hardware)
    return None not in names and names != (models or session.pair_spec().names)


def lacks_measurement() -> bool:
    """Return whether the current vector or profile was measured on other models than those planned for."""
    if session.pair_spec().is_alone:
        return False
    models = session.planned_models()
    return vector_is_for_another_pair(models) or profile_is_for_another_pair(models)


def contradiction() -> str | None:
    """Describe how this machine contradicts the current profile or plan; None if it is not known to do so."""
    hardware = session.profile()
    if hardware is None or not is_for_this_machine(hardware):
        return None
    ratio = state().pass_times.get(profile_key(hardware)) or 1.0
    if max(ratio, 1 / ratio) > CHECK_MARGIN:
        speed = f"{ratio:.2g} times as long as" if ratio > 1 else f"{ratio:.0%} of the time that"
        return f"a target pass takes {speed} these times say"
    key, words = state().contradiction or ("", "")
    return words if key == profile_key(hardware) else None


def profile_key(hardware: HardwareProfile) -> str:
    """Return a key that identifies a profile's times."""
    return blake2b(hardware.verify_sec.tobytes() + hardware.device.encode(), digest_size=8).hexdigest()


def is_for_this_machine(hardware: HardwareProfile) -> bool:
    """Return whether a profile stands for the current pair on this machine, whoever measured it."""
    here = state().profile is None or hardware.measured_by(installation_id())
    return here and session.models_of(hardware) == session.pair_spec().names


def pair_in_use() -> dict[str, Any]:
    """Return the run fields that identify the current pair."""
    spec = session.pair_spec()
    target, draft = spec.names
    return {"target": target, "draft": draft, "dtype": resolve_dtype(spec), "offload": spec.offload}


def matches_pair_in_use(run: dict[str, Any]) -> bool:
    """Return whether a run used the current pair; a field that is not recorded counts as equal."""
    return all(
        run.get(name) == value or (run.get(name) is None and name != "offload") for name, value in pair_in_use().items()
    )


def resolve_dtype(spec: PairSpec | None = None) -> str:
    """Return the dtype in which a pair, by default the current one, is loaded on this machine."""
    spec = spec or session.pair_spec()
    chosen = None if is_gguf(spec.target or "") else spec.dtype  # a GGUF file determines its dtype
    return str(chosen or default_dtype(spec.target, gpu=machine.has_gpu()).dtype)


MEASURED = "measured here"
SHIPPED = "shipped, from another machine"
ELSEWHERE = "measured on another machine"
MODELLED = "modelled"
OTHER_SETTINGS = "measured with other settings"
DISTURBED = "measured on a busy machine"
CONTRADICTED = "does not match this machine"
UNMEASURED = "Measure first"  # nothing was measured for the current pair
MISSING = "no prediction"  # what was chosen does not belong together
CHECK_MARGIN = 1.3  # ratio of pass times beyond which this machine contradicts a profile


class PredictionBasis(NamedTuple):
    """The basis of the predictions on all pages.

    Attributes:
        name: one of the names above.
        why: one sentence that says what is wrong and how to fix it; empty if nothing is (not escaped).
        assumed: the models that a vector without conditions must have been measured on; empty with conditions.
    """

    name: str
    why: str
    assumed: str = ""

    @property
    def predicts(self) -> bool:
        """Whether anything is predicted."""
        return self.name not in (UNMEASURED, MISSING)


def prediction_basis() -> PredictionBasis:
    """Return the basis of the predictions on all pages."""
    hardware = session.profile()
    held = session.acceptance().holds_for
    if session.pair_spec().is_alone and state().profile is None:
        return PredictionBasis(MISSING, "Without a draft there is no tree to plan; lookup trees follow the text.")
    if lacks_measurement():
        return _lacking_basis()
    if hardware is None:
        return PredictionBasis(MISSING, "There are no pass times: measure this machine, or choose another one.")
    name, why = basis_of_times(hardware)
    if held is None:
        return PredictionBasis(name, why, assumed=session.short_names(*session.planned_models()))
    temperature, top_p = session.sampling()
    wanted = replace(held, temperature=temperature, top_p=top_p, verifier="sequoia", top_k=0)
    if held.differences(wanted):
        name = MISSING
        now = f"{temperature:g}" + (f" with top-p {top_p:g}" if top_p < 1 else "")
        why = f"The acceptance was measured at {held.sampling}, not at temperature {now}."
    return PredictionBasis(name, why)


def _lacking_basis() -> PredictionBasis:
    """Return the basis if the vector or the profile was measured on other models than those planned for."""
    models = session.short_names(*session.planned_models())
    held = session.acceptance().holds_for
    if held is not None and (session.has_chosen_acceptance() or state().profile is not None):
        of = session.short_names(held.target, held.draft)
        return PredictionBasis(MISSING, f"The acceptance was measured for {of}, the machine is set to {models}.")
    return PredictionBasis(UNMEASURED, f"Nothing was measured for the {session.pair_name()} on this machine yet.")


def basis_of_times(hardware: HardwareProfile) -> tuple[str, str]:
    """Return the basis of a profile that belongs to the models planned for, and what is wrong with it."""
    if hardware.modelled:
        return MODELLED, ""
    against = contradiction()
    if against is not None:
        return CONTRADICTED, f"{against[0].upper()}{against[1:]}: measure this machine while it is idle."
    if not hardware.measured_by(installation_id()):
        if state().profile is not None:
            return ELSEWHERE, ""
        checked = state().pass_times.get(profile_key(hardware))
        return SHIPPED, f"These times are of another {hardware.device}{', about as fast' if checked else ''}."
    if (busy := load_sentence(hardware.meta.get("load"))) is not None:
        return DISTURBED, busy
    faults = "; ".join(profile_mismatches())
    return (OTHER_SETTINGS, f"{faults[0].upper()}{faults[1:]}.") if faults else (MEASURED, "")


def planned_prediction(tree: TokenTree, basis: PredictionBasis | None = None) -> Prediction | None:
    """Return a tree's prediction for the models and the machine planned for; None if nothing is predicted.

    `basis`: the result of `prediction_basis`, if it is known.
    """
    hardware = session.profile()
    if hardware is None or tree.size > hardware.max_size or not (basis or prediction_basis()).predicts:
        return None
    return core_cache.prediction(session.acceptance(), hardware, tree)


def profiled_machine() -> str:
    """Return "this hardware" if the current profile applies to it, else the name of the profiled device."""
    hardware = session.profile()
    return hardware.device if hardware and profile_mismatches() else "this hardware"


def prediction(tree: TokenTree, vector: AcceptanceVector, *, prompts: int | None = None) -> Prediction | None:
    """Return the prediction for decoding with a tree, with intervals; None without times that were measured here.

    Args:
        vector: the vector measured under the decode's conditions.
        prompts: number of prompts to be decoded; None for the mean over all texts of the same kind.
    """
    hardware = session.profile()
    if hardware is None or profile_mismatches() or tree.size > hardware.max_size:
        return None
    return core_cache.prediction(vector, hardware, tree, prompts)
