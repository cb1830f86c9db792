"""Robustness: evidence on this pair. Verifiers compared, what they promise, losslessness checked, one vector tested."""

import streamlit as st

from ui import controls, page_setup, session
from ui.literal import plain
from ui.robustness import panel, records, views, wording
from ui.robustness.measurements import assumption_work, compare_work, lossless_work
from ui.robustness.wording import NAMES

TEMPERATURES = (0.0, 0.3, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0)
TOP_PS = (1.0, 0.95, 0.9, 0.8)
SAMPLES = (200, 500, 1000, 2000, 4000)
VERIFIERS = ("sequoia", *wording.RIVALS)
OWN, OWN_PROMPT = -1, "Your own, below"
PROMISES = {
    "optimal_transport": (
        "Optimal transport",
        "With one child it accepts as often as any rule can, 1 − ‖P − Q‖₁ / 2: a better draft always pays.",
    ),
    "cover": ("Cover", "Where the children hold every token the target could want, one of them is always accepted."),
}
FILLS = {
    "sequoia": "Draws children without replacement; after a rejection both rows give up what was tried.",
    "specinfer": "Draws children with replacement: a wrong token can be offered twice.",
    "topk": "Takes the draft's most likely tokens, whatever odds the draft gives them.",
}
EXAMPLES = (
    ("1, 0", ".5, .5", 2, "Sequoia tries both tokens; SpecInfer may draw the wrong one twice"),
    (".6, .4", ".6, .4", 1, "A perfect draft is always accepted, except by top-k"),
)


def verifiers_section() -> None:
    """Compare the verifiers on one tree over temperatures."""
    st.caption("Which verifier yields more? The same tree and prompts, decoded for real with each.")
    with panel.folded("comparison", "comparison"), st.form("robustness_compare", border=False):
        left, right = st.columns([2, 1])
        temperatures = left.multiselect(
            "Temperatures",
            TEMPERATURES,
            [0.0, 0.6, 1.0, 1.5],
            key="robustness_temperatures",
            format_func=lambda value: f"{value:g}",
            bind="query-params",
            help="Of the target. At 0 every verifier is the same greedy one.",
        )
        top_ps = right.multiselect(
            "Top-p",
            TOP_PS,
            [1.0],
            key="robustness_top_ps",
            format_func=lambda value: f"{value:g}",
            bind="query-params",
            help="Nucleus kept of the target's distribution, crossed with the temperatures; 1 keeps everything.",
        )
        prompts, tokens = panel.text_controls("comparison", 6)
        kind = panel.tree_control("comparison", ["shape", "use"])
        if panel.start_button("comparison"):
            try:
                if not temperatures or not top_ps:
                    raise ValueError("settings: found an empty list, expected at least one temperature and one top-p")
                subject = panel.subject(kind, prompts, tokens)
            except ValueError as error:
                st.error(f"{plain(str(error))}.", icon=":material/error:")
            else:
                work = compare_work(subject, temperatures, top_ps)
                panel.start("comparison", "Comparing verifiers", work)
    record = panel.on_show("comparison")
    if record is not None:
        views.show_comparison(record)


def guarantees_section() -> None:
    """Show what each verifier promises, with exact counter-examples, and let the reader try rows of their own."""
    from sequoia_core.decoding.verifiers import VERIFIERS as rules

    st.caption("What does each verifier promise? Two properties, and exact examples of what their absence costs.")
    for place, name in zip(st.columns(3), VERIFIERS, strict=True):
        with place.container(border=True, height="stretch"):
            st.markdown(f"**{NAMES[name]}**")
            with st.container(horizontal=True):
                for attribute, (label, meaning) in PROMISES.items():
                    kept = getattr(rules[name], attribute)
                    icon, color = (":material/check:", "green") if kept else (":material/close:", "orange")
                    st.badge(label if kept else f"No {label.lower()}", icon=icon, color=color, help=meaning)
            st.caption(FILLS[name])
    st.subheader("Why it matters")
    st.markdown("How often one of k children is accepted, by enumerating every draw: P is the target, Q the draft.")
    st.table(
        [
            {
                "P": target,
                "Q": draft,
                "k": k,
                **{NAMES[name]: f"{value:.3g}" for name, value in exact_acceptance(target, draft, k).items()},
                "What happens": why,
            }
            for target, draft, k, why in EXAMPLES
        ],
        hide_index=True,
        alt="Acceptance of each verifier on the two worked examples",
    )
    st.subheader("Try your own")
    left, middle, right = st.columns([2, 2, 1])
    options = {"max_chars": 60, "bind": "query-params"}
    target = left.text_input(
        "Target P", ".5, .3, .2", key="robustness_p", help="2 to 5 probabilities with commas; they sum to 1.", **options
    )
    draft = middle.text_input(
        "Draft Q", ".2, .3, .5", key="robustness_q", help="As many as P has; they sum to 1.", **options
    )
    k = right.number_input("Children k", 1, 5, 2, key="robustness_k", bind="query-params", help="At most the tokens.")
    try:
        found = exact_acceptance(target, draft, int(k))
        ceiling = exact_acceptance(target, draft, 1)["sequoia"]
    except ValueError as error:
        st.error(f"{plain(str(error))}.", icon=":material/error:")
        return
    best = max(found.values())
    for place, (name, value) in zip(st.columns(3), found.items(), strict=True):
        lost = best - value
        against = "the most of the three" if lost < 1e-9 else f"{100 * lost:.1f} points below the best"
        controls.card(place, f"{NAMES[name]} accepts", f"{value:.1%}", against, help="Exact: every draw is enumerated.")
    st.markdown(
        f"With one child no rule can accept a draw from this Q more than {ceiling:.1%} of the time; "
        f"with k = {k:.0f} the best of the three reaches {best:.1%}."
    )
    rows = [{"verifier": name, "acceptance": value} for name, value in found.items()]
    settings = {"target_row": records.read_row(target, "P"), "draft_row": records.read_row(draft, "Q"), "k": int(k)}
    panel.downloads("guarantees", {"settings": settings, "acceptance": rows}, {"Acceptance": rows})


def exact_acceptance(target: str, draft: str, k: int) -> dict[str, float]:
    """Return each verifier's exact acceptance of rows as typed.

    Raises:
        ValueError: naming the row or k, what was found and what was expected.
    """
    from sequoia_core import acceptance_probability

    rows = records.read_row(target, "P"), records.read_row(draft, "Q")
    return {name: acceptance_probability(*rows, k, name) for name in VERIFIERS}


def losslessness_section() -> None:
    """Decode one prompt many times and test what was written against the target's own law."""
    st.caption("Is the output still exactly the target's? Decode one prompt many times and count what was written.")
    with panel.folded("losslessness", "check"), st.form("robustness_lossless", border=False):
        shipped = session.shipped_prompts()
        left, right = st.columns(2)
        place = left.selectbox(
            "Prompt",
            [*range(len(shipped)), OWN],
            key="robustness_prompt",
            format_func=lambda i: OWN_PROMPT if i == OWN else wording.literal(shipped[i].strip().splitlines()[0]),
            help="Held-out text that ships with the app, or your own.",
        )
        verifier = right.segmented_control(
            "Verifier",
            VERIFIERS,
            default="sequoia",
            required=True,
            key="robustness_verifier",
            format_func=NAMES.get,
            bind="query-params",
            help="All three are lossless, each with the way it draws the children.",
        )
        own = st.text_area(
            "Your own prompt",
            key="robustness_losslessness_own",
            height=68,
            persist_state="session",
            help=f"Used where the prompt is “{OWN_PROMPT}”.",
        )
        temperature, top_p = panel.sampling_controls("losslessness", 1.0)
        left, middle, right = st.columns(3, vertical_alignment="bottom")
        samples = left.select_slider(
            "Samples",
            SAMPLES,
            1000,
            key="robustness_samples",
            bind="query-params",
            help="Continuations decoded. More of them find smaller errors, and take longer.",
        )
        seed = middle.number_input(
            "Seed", 0, 2**31 - 1, 0, key="robustness_seed", help="Another seed draws other samples."
        )
        with right:
            kind = panel.tree_control("losslessness", ["small", "use"])
        if panel.start_button("losslessness"):
            prompt = own if place == OWN else shipped[place]
            try:
                subject = panel.subject(kind, [prompt] if prompt.strip() else [])
            except ValueError as error:
                st.error(f"{plain(str(error))}.", icon=":material/error:")
            else:
                work = lossless_work(
                    subject, temperature=temperature, top_p=top_p, verifier=verifier, samples=samples, seed=int(seed)
                )
                panel.start("losslessness", "Checking losslessness", work)
    record = panel.on_show("losslessness")
    if record is not None:
        views.show_losslessness(record)


def assumption_section() -> None:
    """Test the one vector for all levels: by depth, by confidence, and against real decoding."""
    st.caption("Does one acceptance vector, measured beforehand, really describe every level of the tree?")
    with panel.folded("assumption", "test"), st.form("robustness_assume", border=False):
        temperature, top_p = panel.sampling_controls("assumption", 0.6)
        prompts, tokens = panel.text_controls("assumption", 8)
        kind = panel.tree_control("assumption", ["shape", "use"])
        if panel.start_button("assumption"):
            try:
                subject = panel.subject(kind, prompts, tokens, least=4)
            except ValueError as error:
                st.error(f"{plain(str(error))}.", icon=":material/error:")
            else:
                work = assumption_work(subject, temperature=temperature, top_p=top_p)
                panel.start("assumption", "Testing the vector", work)
    record = panel.on_show("assumption")
    if record is not None:
        views.show_assumption(record)


page_setup.setup_page("Robustness")
st.title("Robustness")
st.caption("Does it hold on this pair? Evidence by temperature, by guarantee, by statistical test and by depth.")
sections = {
    "Verifiers": verifiers_section,
    "Guarantees": guarantees_section,
    "Losslessness": losslessness_section,
    "Assumption": assumption_section,
}
tabs = st.tabs(list(sections), key="robustness_section", bind="query-params", on_change="rerun")
for tab, draw in zip(tabs, sections.values(), strict=True):
    if tab.open:  # the others would cost time unseen
        with tab:
            draw()
