"""Hardware: what do drafting and verifying cost here, and which tree shape does that make the fastest?"""

import json

import streamlit as st

from sequoia_core.design.planning import BestShape
from ui import charts, controls, core_cache, page_setup, session
from ui.literal import plain


def choose_shipped() -> None:
    """Use the shipped profile that was just picked."""
    name = st.session_state["hardware_shipped"]
    if name is not None:
        session.use_shipped_profile(name)


def upload_profile() -> None:
    """Read an uploaded profile; a broken file leaves the one in use untouched."""
    from sequoia_core import HardwareProfile

    upload = controls.file_upload(
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


def measure_profile() -> None:
    """Offer to time the model pair on this machine and show the progress."""
    job = session.job("profile")
    with st.form("hardware_measure"):
        left, middle, right = st.columns(3)
        largest = left.select_slider(
            "Largest tree",
            [16, 32, 64, 128, 256, 512],
            64,
            key="hardware_largest",
            help="Target passes of 1, 2, 4, … up to this many tokens are timed. A GPU deserves 256 or more.",
        )
        context = middle.select_slider(
            "Context",
            [32, 64, 128, 256, 512],
            128,
            key="hardware_context",
            help="Tokens already in the cache while timing; attention over a longer prefix costs more.",
        )
        repeats = right.select_slider(
            "Repeats",
            [3, 5, 9, 15, 25],
            9,
            key="hardware_repeats",
            help="Each size is timed this often after a warm-up; the median counts, the spread is shown.",
        )
        if st.form_submit_button(
            f"Measure this machine ({plain(session.device_name())})",
            icon=":material/speed:",
            type="primary",
            disabled=job is not None and job.active,
        ):
            start_profiling(largest, context, repeats)
    controls.job_panel("profile")


def start_profiling(largest: int, context: int, repeats: int) -> None:
    """Queue the profiling behind whatever else uses the device, or its timings would be wrong."""
    from ui.jobs import JobContext

    spec = session.pair_spec()
    sizes = [2**k for k in range(largest.bit_length())]

    def work(job: JobContext):
        from sequoia_core import measure_profile

        pair = job.pair(spec)
        return measure_profile(
            target=pair.target,
            draft=pair.draft,
            sizes=sizes,
            context=context,
            repeats=repeats,
            progress=job.progress,
            cancel=job.cancel,
        )

    controls.start_job("profile", "Profiling", work, info=f"measured here on the {session.pair_name()}")


def limit_sentence(best: BestShape, verify: float) -> str:
    """Say in one sentence where a step's time goes and what would help most."""
    cost = best.expected_tokens / best.predicted_speedup  # in passes of one token
    draft, extra = cost - verify, verify - 1
    if best.size < 2 or best.predicted_speedup < 1.05:
        why = "**speculation will not pay here**: guesses cost as much as they save. A better or cheaper draft helps."
    elif cost < 1.25:
        why = "almost what one token costs anyway, so **acceptance is the limit**: a better draft would help most."
    elif draft > extra:
        why = "**drafting is the limit**: a cheaper draft would help more than a faster target pass."
    else:
        why = "**verification is the limit**: this device has little idle arithmetic for more tokens in one pass."
    return (
        f"At the best shape a step yields {best.expected_tokens:.2f} tokens and costs {cost:.2f} single-token passes, "
        f"{verify:.2f} to verify and {draft:.2f} to draft; {why}"
    )


page_setup.setup_page("Hardware")
st.title("Hardware")
st.caption("What do drafting and verifying cost on this machine, and which tree shape does that make the fastest?")

names = list(session.shipped("profiles"))
way = st.segmented_control(
    "Where the profile comes from",
    ["Shipped", "Upload", "Measure"],
    default="Shipped",
    required=True,
    key="hardware_way",
    bind="query-params",
    label_visibility="collapsed",
)
if way == "Upload":
    upload_profile()
elif way == "Measure":
    measure_profile()
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

foreign = [*session.vector_faults(), *session.profile_faults()]
if foreign:
    st.warning(
        f"A what-if, not a prediction for the {session.pair_name()} on this machine: {plain('; '.join(foreign))}. "
        "Measure acceptance and passes here before believing a speedup.",
        icon=":material/warning:",
    )
surface, best = core_cache.planned(vector, profile)
if len(surface.speedup) - 1 < min(profile.max_size, core_cache.MAX_SIZE):
    st.caption(f":material/info: {core_cache.TOO_LONG}")
verify = float(profile.t(best.size))
speedup, cost, one, room = st.columns(4)
controls.card(
    speedup,
    "Supposed speedup" if foreign else "Best predicted speedup",
    f"{best.predicted_speedup:.2f}×",
    f"{best.predicted_speedup - 1:+.2f}× vs 1.00×",
    signed=True,
    help="Expected tokens ÷ (t(n) + d·c), the largest over all shapes.",
)
controls.card(
    cost,
    "Best shape",
    f"n = {best.size}, d = {best.depth}",
    f"{best.expected_tokens:.2f} tokens per step",
    help="Tree size and depth at the optimum; the paper writes the depth as levels, D = d + 1.",
)
controls.card(
    one,
    "Draft cost c",
    f"{profile.c:.3f}",
    f"{1000 * profile.draft_sec:.3g} ms ÷ {1000 * profile.verify_sec[0]:.3g} ms",
    help="One draft pass ÷ one target pass over one token. The paper's A100: about 0.02.",
)
controls.card(
    room,
    f"Verification t({best.size})",
    f"{verify:.2f}",
    f"vs {best.size}.00 one by one",
    help="Time of one target pass over the whole tree ÷ over one token. The paper's A100: t(128) ≈ 1.05.",
)

left, right = st.columns([2, 3])
left.subheader("Cost of a target pass")
left.plotly_chart(
    charts.verify_time_figure(profile, here=best.size),
    width="stretch",
    key="hardware_times",
    alt=f"Relative time of a target pass against its tokens, 1 to {profile.max_size}",
)
with right:
    st.subheader("Speedup if both held" if foreign else "Predicted speedup")
    solid = st.toggle("3-D surface", key="hardware_3d", bind="query-params", help="Needs WebGL in the browser.")
    figure = (
        charts.speedup_surface_3d(surface, best)
        if solid
        else charts.speedup_heatmap(surface, best, here=(session.tree().size, session.tree().depth))
    )
    st.plotly_chart(
        figure,
        width="stretch",
        key="hardware_surface",
        alt=f"Predicted speedup over n and d, best {best.predicted_speedup:.2f} at n = {best.size}, d = {best.depth}",
    )
st.markdown(limit_sentence(best, verify))

with st.container(horizontal=True):
    if st.button(
        f"Use this shape: n = {best.size}, d = {best.depth}",
        icon=":material/check:",
        type="primary",
        key="hardware_use",
        help="Sets the tree for the Tree and Decode pages.",
    ):
        session.set_shape(best.size, best.depth)
        st.toast(f"The tree is now n = {best.size}, d = {best.depth}.", icon=":material/account_tree:")
    st.download_button(
        "Download profile",
        json.dumps(profile.to_json(), indent=1),
        "profile.json",
        "application/json",
        key="hardware_download",
        icon=":material/download:",
        on_click="ignore",
        help="Sizes, times, raw samples and what they were measured on.",
    )
