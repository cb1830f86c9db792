"""Hardware: what do drafting and verifying cost here, and which tree shape does that make the fastest?"""

import streamlit as st

from sequoia_core.design.planning import BestShape
from sequoia_core.design.step_limit import IdleArithmetic, StepCost, idle_arithmetic, step_limit
from ui import charts, controls, core_cache, page_setup, predictions, session, shipped, tree_in_use, uploads
from ui.cards import Card, cards
from ui.hardware import measurement
from ui.literal import plain

LIMITS = {
    "nothing pays": "**speculation will not pay here**: guesses cost as much as they save. A better or cheaper draft "
    "helps.",
    "acceptance": "almost what one token costs anyway, so **acceptance is the limit**: a better draft would help most.",
    "drafting": "**drafting is the limit**: a cheaper draft would help more than a faster target pass.",
    "verifying": "**verification is the limit**: this device has little idle arithmetic for more tokens in one pass.",
}


def choose_shipped() -> None:
    """Use the shipped profile that was just picked."""
    name = st.session_state["hardware_shipped"]
    if name is not None:
        session.use_shipped_profile(name)


def upload_profile() -> None:
    """Read an uploaded profile; a broken file leaves the one in use untouched."""
    from sequoia_core import HardwareProfile

    upload = uploads.file_upload(
        "Hardware profile",
        ("json",),
        HardwareProfile.loads,
        key="hardware_file",
        help="JSON written by this page or by `python -m sequoia_core profile`.",
    )
    if upload is None:
        st.caption("Nothing uploaded yet. Profile the machine you will decode on, then bring the file here.")
    elif upload.error:
        st.error(f"{upload.error}. The previous profile stays in use.", icon=":material/error:")
    elif upload.value is not None:
        if upload.is_new:
            session.set_profile(upload.value, f"your file {upload.name}")
        st.success(f"{upload.name}: up to n = {upload.value.max_size}, in use.", icon=":material/check_circle:")


def idle_sentence(idle: IdleArithmetic, largest: int) -> str:
    """Say how much arithmetic lies idle in a pass over one token: what speculation lives on."""
    free = f"Up to n = {idle.tokens}" if idle.tokens > 1 else "Not even two tokens"
    if idle.tokens == largest:
        return (
            f"{free}, the largest size measured, a pass costs hardly more than one token: large trees are cheap here."
        )
    costs = "a pass costs at most 10 % more than one token" if idle.tokens > 1 else "cost as little as one"
    return (
        f"{free} {costs}: so much arithmetic lies idle while the weights are read. Each token beyond costs "
        f"{idle.further_cost:.2f} of a pass and must earn it. The faster a processor reads, the less lies idle."
    )


def limit_sentence(best: BestShape, cost: StepCost) -> str:
    """Say in one sentence where a step's time goes and what would help most."""
    return (
        f"At the best shape a step yields {best.expected_tokens:.2f} tokens and costs {cost.total:.2f} single-token "
        f"passes, {cost.verify:.2f} to verify and {cost.draft:.2f} to draft; {LIMITS[cost.limit]}"
    )


page_setup.setup_page("Hardware")
st.title("Hardware")
st.caption("What do drafting and verifying cost on this machine, and which tree shape does that make the fastest?")

names = list(shipped.files("profiles"))
way = controls.source_picker("Where the profile comes from", ["Shipped", "Upload", "Measure"], key="hardware_way")
if way == "Upload":
    upload_profile()
elif way == "Measure":
    measurement.section()
else:
    name = session.profile_name()
    st.selectbox(
        "Shipped profile",
        names,
        index=names.index(name) if name else None,
        key="hardware_shipped",
        on_change=choose_shipped,
        placeholder="Your own profile is in use; pick one to replace it" if names else "None ships",
        help="Times of another machine predict another machine: measure yours before believing a speedup.",
    )

profile, vector = session.profile(), session.acceptance()
if profile is None:
    st.info(
        "No hardware profile yet. Choose Measure to time the model pair here (a minute on a laptop), or upload one.",
        icon=":material/timer:",
    )
    st.stop()
st.markdown(
    f":material/label: **In use:** {plain(session.profile_source())} &nbsp;·&nbsp; "
    f"acceptance {plain(session.acceptance_source())}"
)
if profile.meta.get("passes_by"):
    st.caption(plain(f"Target passes in {profile.dtype} by {str(profile.meta['passes_by'])[:120]}."))

foreign = [*predictions.vector_faults(), *predictions.profile_faults()]
if foreign:
    st.warning(
        f"A what-if, not a prediction for the {session.pair_name()} on this machine: {plain('; '.join(foreign))}. "
        "Measure acceptance and passes here before believing a speedup.",
        icon=":material/warning:",
    )
surface, best = core_cache.planned(vector, profile)
if surface.max_size < min(profile.max_size, core_cache.MAX_SIZE):
    st.caption(f":material/info: {controls.TOO_LONG}")
cost = step_limit(best, profile)
cards(
    Card(
        "Supposed speedup" if foreign else "Best predicted speedup",
        f"{best.predicted_speedup:.2f}×",
        f"{best.predicted_speedup - 1:+.2f}× vs 1.00×",
        signed=True,
        help="Expected tokens ÷ (t(n) + d·c), the largest over all shapes.",
    ),
    Card(
        "Best shape",
        f"n = {best.size}, d = {best.depth}",
        f"{best.expected_tokens:.2f} tokens per step",
        help="Tree size and depth at the optimum; the paper writes the depth as levels, D = d + 1.",
    ),
    Card(
        "Draft cost c",
        f"{profile.c:.3f}",
        f"{1000 * profile.draft_sec:.3g} ms ÷ {1000 * profile.verify_sec[0]:.3g} ms",
        help="One draft pass ÷ one target pass over one token. The paper's A100: about 0.02.",
    ),
    Card(
        f"Verification t({best.size})",
        f"{cost.verify:.2f}",
        f"vs {best.size}.00 one by one",
        help="Time of one target pass over the whole tree ÷ over one token. The paper's A100: t(128) ≈ 1.05.",
    ),
)

left, right = st.columns([2, 3])
left.subheader("Cost of a target pass")
left.plotly_chart(
    charts.verify_time_figure(profile, here=best.size),
    width="stretch",
    key="hardware_times",
    alt=f"Relative time of a target pass against its tokens, 1 to {profile.max_size}",
)
left.caption(idle_sentence(idle_arithmetic(profile), profile.max_size))
with right:
    st.subheader("Speedup if both held" if foreign else "Predicted speedup")
    solid = st.toggle("3-D surface", key="hardware_3d", bind="query-params", help="Needs WebGL in the browser.")
    figure = (
        charts.speedup_surface_3d(surface, best)
        if solid
        else charts.speedup_heatmap(surface, best, here=(tree_in_use.current().size, tree_in_use.current().depth))
    )
    st.plotly_chart(
        figure,
        width="stretch",
        key="hardware_surface",
        alt=f"Predicted speedup over n and d, best {best.predicted_speedup:.2f} at n = {best.size}, d = {best.depth}",
    )
st.markdown(limit_sentence(best, cost))

with st.container(horizontal=True):
    if st.button(
        f"Use this shape: n = {best.size}, d = {best.depth}",
        icon=":material/check:",
        type="primary",
        key="hardware_use",
        help="Sets the tree for the Tree and Decode pages.",
    ):
        tree_in_use.set_shape(best.size, best.depth)
        st.toast(f"The tree is now n = {best.size}, d = {best.depth}.", icon=":material/account_tree:")
    st.download_button(
        "Download profile",
        profile.to_bytes(),
        "profile.json",
        "application/json",
        key="hardware_download",
        icon=":material/download:",
        on_click="ignore",
        help="Sizes, times, raw samples and what they were measured on.",
    )
