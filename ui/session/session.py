"""The inputs to a browser session's plans: model pair, sampling, acceptance vector and hardware profile."""

import logging
from dataclasses import replace
from pathlib import Path

import streamlit as st
from streamlit.runtime.scriptrunner_utils.script_run_context import get_script_run_ctx

from sequoia_core import AcceptanceVector, HardwareProfile
from sequoia_core.acceptance.conditions import Conditions
from sequoia_core.files.model_names import model_folder
from sequoia_core.models.chat import has_chat_template
from sequoia_core.models.installation import installation_id
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.planning.profile import TIER_NAMES
from ui.kept import store
from ui.markdown import safe_name
from ui.session import shipped
from ui.session.gguf_files import is_gguf
from ui.session.listing import LISTINGS, MAX_OWN, PROFILES, VECTORS
from ui.session.state import Chosen, state

_LOG = logging.getLogger(__name__)
# Keyed by the names in records.
DEMO_DRAFT_NAMES = {"demo draft-large": "large draft", "demo head": "head", "demo block-head": "block head"}


def pair_spec() -> PairSpec:
    """Return the spec of the models to load, including their dtype."""
    return state().pair


def pair_name() -> str:
    """Return the pair's name for use after "the", including where the target's weights are if not in memory."""
    spec = pair_spec()
    tier = None if spec.offload is None else TIER_NAMES[spec.offload]
    if spec.is_alone:
        return models_name() if tier is None else f"{models_name()}, {tier}"
    location = "" if tier is None else f" with its target {tier}"
    if not spec.is_demo:
        return f"pair {models_name()}{location}"
    draft = DEMO_DRAFT_NAMES.get(spec.names[1])
    return f"demo pair{location}" if draft is None else f"demo pair with its {draft}{location.replace('with', 'and')}"


def models_name() -> str:
    """Return the names of the two models, or of the target if there is no draft."""
    target, draft = pair_spec().names
    return f"{safe_name(Path(target).name)} without a draft" if pair_spec().is_alone else short_names(target, draft)


def has_chat() -> bool:
    """Return whether the target has a chat template; False for files that are not on this machine."""
    name = pair_spec().sources[0]
    if is_gguf(name):
        from sequoia_extras.gguf.header import read_gguf_header

        return "tokenizer.chat_template" in read_gguf_header(name).fields
    folder = model_folder(name)
    return folder is not None and has_chat_template(folder)


def sampling() -> tuple[float, float]:
    """Return the session's temperature and top-p, for runs, races and measurements."""
    return state().sampling


def set_sampling(temperature: float, top_p: float) -> None:
    """Set temperature and top-p; a default vector is replaced by the one measured at these settings."""
    if (temperature, top_p) != sampling():
        state().sampling = (temperature, top_p)
        _follow_best_shape()


def claim_sampling_controls() -> bool:
    """Record that this page draws the sampling controls; return whether a different page drew them last."""
    context = get_script_run_ctx()
    before = state().sampling_page
    state().sampling_page = "" if context is None else context.page_script_hash
    return before not in (None, state().sampling_page)


def planned_models() -> tuple[str, str]:
    """Return the target and draft that plans are for: those of the chosen machine's profile, or else the pair's."""
    chosen = state().profile
    target, draft = (None, None) if chosen is None else models_of(chosen.value)
    return pair_spec().names if target is None or draft is None else (target, draft)


def models_of(hardware: HardwareProfile) -> tuple[str | None, str | None]:
    """Return the names of the models whose passes a profile contains; None where unknown."""
    return hardware.meta.get("target"), hardware.meta.get("draft")


def short_names(target: str, draft: str) -> str:
    """Return the names of two models without their folders, safe to show as markdown."""
    return f"{safe_name(Path(target).name)} ← {safe_name(Path(draft).name)}"


def vectors() -> dict[str, AcceptanceVector]:
    """Return every selectable vector by name: this session's, newest first, then the shipped ones."""
    return VECTORS.values()


def vector_title(name: str) -> str:
    """Return the text that describes one of `vectors()` in a list."""
    source = VECTORS.choose(name).source
    return f"{name}: {source.removeprefix('shipped with the app, measured on ')}"


def acceptance() -> AcceptanceVector:
    """Return the current vector: the chosen one, or the one that applies to the models planned for."""
    chosen = state().acceptance
    return default_acceptance() if chosen is None else chosen.value


def default_acceptance() -> AcceptanceVector:
    """Return a vector of the models planned for, preferably with the session's sampling; without one, the first."""
    first = next(iter(shipped.vectors().values()), None)
    if first is None:
        st.error(
            f"There is no acceptance vector in {shipped.ASSETS / 'acceptance'}. Restore the folder from the repository."
        )
        st.stop()
    models = planned_models()
    measured = [
        (vector, held)
        for vector in vectors().values()
        if (held := vector.holds_for) is not None
        and (held.target, held.draft) == models
        and (held.temperature == 0 or held.verifier == "sequoia")
    ]
    same_sampling = (vector for vector, held in measured if (held.temperature, held.top_p) == sampling())
    scenario = None if measured or state().profile is None else shipped.scenario_of(profile())
    fallback = measured[0][0] if measured else first if scenario is None else shipped.load_scenario(scenario)[0]
    return next(same_sampling, fallback)


def acceptance_source() -> str:
    """Describe where the current vector comes from."""
    chosen = state().acceptance
    return VECTORS.source(acceptance()) if chosen is None else chosen.source


def acceptance_name() -> str | None:
    """Return the current vector's name in `vectors()`; None if it was derived from one of them."""
    return VECTORS.name(acceptance())


def has_chosen_acceptance() -> bool:
    """Return whether the current vector was selected, uploaded or measured, rather than a default."""
    return state().acceptance is not None


def use_vector(name: str | None) -> None:
    """Switch every page to one of `vectors()`; None for the one that applies to the models planned for."""
    _use(None if name is None else VECTORS.choose(name))


def set_acceptance(vector: AcceptanceVector, source: str, name: str) -> None:
    """Switch every page to this vector and list it under this name, numbered if the name is taken."""
    _use(VECTORS.keep(vector, source, name))


def set_measured_acceptance(vector: AcceptanceVector, source: str, name: str) -> None:
    """List a vector that was just measured, and switch to it, for as long as it applies to what is planned for."""
    set_acceptance(vector, source, name)
    if default_acceptance() is vector:
        _use(None)


def load_kept() -> None:
    """List the vectors and profiles that earlier sessions kept; files that cannot be read are left out."""
    for listing in LISTINGS:
        for entry in reversed(store.entries(listing.kind)[:MAX_OWN]):
            try:
                listing.add(Chosen(listing.load(entry.path), entry.source), entry.name)
            except (OSError, ValueError) as error:
                _LOG.warning("a kept file cannot be read: %s", error)


def smooth_acceptance(vector: AcceptanceVector) -> None:
    """Switch to a smoothed version of the current vector; `restore_acceptance` switches back."""
    original = state().original or Chosen(acceptance(), acceptance_source())
    _use(Chosen(vector, f"smoothed, from: {original.source}"), original)


def original_acceptance() -> AcceptanceVector:
    """Return the vector from which the current one was derived, or else the current one."""
    original = state().original
    return acceptance() if original is None else original.value


def is_varied() -> bool:
    """Return whether the current vector was derived from another one in this session."""
    return state().original is not None


def restore_acceptance() -> None:
    """Undo every modification of the current vector."""
    if (original := state().original) is not None:
        _use(original)


def declare_conditions(conditions: Conditions) -> None:
    """Record the conditions under which the user says the current vector was measured; a shipped vector is copied."""
    original = state().original
    vector = acceptance()
    name = acceptance_name()
    state().own_vectors = {key: chosen for key, chosen in state().own_vectors.items() if key != name}
    source = acceptance_source().split("; declared for ")[0]
    words = f"{safe_name(conditions.target)} ← {safe_name(conditions.draft)}, {conditions.sampling}"
    set_acceptance(replace(vector, holds_for=conditions), f"{source}; declared for {words}", name or "declared")
    state().original = original  # still allows a smoothed vector to be restored


def _use(chosen: Chosen[AcceptanceVector] | None, original: Chosen[AcceptanceVector] | None = None) -> None:
    state().acceptance = chosen
    state().original = original
    _follow_best_shape()


def profiles() -> dict[str, HardwareProfile]:
    """Return every selectable profile by name: this session's, newest first, then the shipped ones."""
    return PROFILES.values()


def profile_title(hardware: HardwareProfile) -> str:
    """Return a profile's machine, models and dtype for a list, safe to show as markdown."""
    device = safe_name(hardware.device.removeprefix("NVIDIA "))
    where = "" if hardware.offload is None else f", target {TIER_NAMES[hardware.offload]}"
    target, draft = (str(name or "?") for name in models_of(hardware))
    return f"{device} · {short_names(target, draft)}{where}, {hardware.dtype}"


def profile() -> HardwareProfile | None:
    """Return the current hardware profile: the chosen one, or this machine's; None if none was measured or shipped.

    This machine's is the newest that this installation measured on the current pair, another of that pair, or any.
    """
    if (chosen := state().profile) is not None:
        return chosen.value
    names = pair_spec().names
    known = [each for each in profiles().values() if not each.modelled]
    here = [each for each in known if models_of(each) == names and each.offload == pair_spec().offload]
    measured = (each for each in here if each.measured_by(installation_id()))
    return next(measured, next(iter(here or known), None))


def profile_source() -> str:
    """Describe where the current profile comes from; empty without one."""
    if (chosen := state().profile) is not None:
        return chosen.source
    current = profile()
    return "" if current is None else PROFILES.source(current)


def profile_name() -> str | None:
    """Return the current profile's name in `profiles()`; None if it is not listed."""
    return PROFILES.name(profile())


def use_profile(name: str | None) -> None:
    """Switch every page to one of `profiles()`; None for this machine."""
    _plan_for(None if name is None else PROFILES.choose(name))


def set_profile(hardware: HardwareProfile, source: str, name: str) -> None:
    """Switch every page to this profile and list it under this name, numbered if the name is taken."""
    _plan_for(PROFILES.keep(hardware, source, name))


def set_measured_profile(hardware: HardwareProfile, source: str) -> None:
    """List a profile that was just measured here, which no earlier run can contradict, and switch to this machine."""
    state().contradiction = None
    set_profile(hardware, source, "measured here")
    use_profile(None)


def _plan_for(chosen: Chosen[HardwareProfile] | None) -> None:
    state().profile = chosen
    _follow_best_shape()


def _follow_best_shape() -> None:
    if state().shape is None:
        state().shape_to_show = True
