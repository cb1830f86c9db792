"""Trees that follow the draft: the choice of them, what is expected of them, and those of the last run."""

import streamlit as st

from sequoia_core.decoding.tree_policy import policy_of
from sequoia_core.design.optimal_trees import node_scores
from sequoia_core.design.tree import TokenTree
from sequoia_core.design.tree_comparison import gallery
from ui import charts
from ui.cards import Card, cards
from ui.markdown import escaped
from ui.phrases import between, count, interval, shape
from ui.runs import runs
from ui.session import core_cache, predictions, session, tree_in_use, tree_kinds
from ui.verifier_names import NAMES

HELP = (
    "Static: the tree above, at every step. SpecExec: at every step the nodes of largest draft probability, as many "
    "as the slider says. Adaptive: at every step what is worth its time by calibration and profile. Lookup: what "
    "followed the same words before. Hybrid: both, by the likelier of the two."
)


def kind_control() -> str:
    """Draw the choice between static and dynamic trees, and use it on every page -> one of `tree_kinds.KINDS`."""
    if "tree_kind" not in {*st.session_state, *st.query_params}:
        st.session_state["tree_kind"] = tree_kinds.KINDS[tree_kinds.current()]
    label = st.segmented_control(
        "Trees to decode with", list(tree_kinds.KINDS.values()), default="Static", required=True, key="tree_kind",
        bind="query-params", help=HELP,
    )  # fmt: skip
    kind = next(kind for kind, name in tree_kinds.KINDS.items() if name == label)
    tree_kinds.use(kind)
    return kind


def section(kind: str) -> None:
    """Draw what is expected of the kind of dynamic trees in use."""
    vector, hardware = session.acceptance(), session.profile()
    policy, origin = tree_kinds.decoded(vector)
    if policy is None:
        st.info(f"{origin} Until then the live page cannot use them.", icon=":material/info:")
    else:
        bounds = policy_of(policy)
        rule = NAMES[bounds.verifiers[0]]
        st.markdown(
            f":material/account_tree: **To decode with:** {escaped(origin)}, exact with the {rule} rule &nbsp;·&nbsp; "
            "the tree above is the best static one, for comparison"
        )
        faults = predictions.faults()
        if tree_kinds.looks_up(policy):
            together = ", and what the draft proposes where that is likelier" if bounds.needs_draft else ""
            st.caption(
                f":material/info: {tree_kinds.KINDS[kind]} trees hold what followed the same words before, "
                f"at next to no cost{together}. What they yield depends on the text: the draft page tells what lookup "
                "does for recorded answers."
            )
        elif vector.calibration is None or hardware is None or bounds.max_size > hardware.max_size:
            st.caption(":material/info: Nothing is predicted of them: that takes a profile, and a calibrated vector.")
        elif faults:
            st.caption(f":material/info: No speedup is predicted of them: {escaped('; '.join(faults))}.")
        else:
            _expected(kind)


def _expected(kind: str) -> None:
    found = core_cache.policy_prediction(kind, *tree_in_use.shape(), session.acceptance(), session.profile())
    static = predictions.prediction(tree_in_use.current())
    tokens, speedup = found.tokens_per_step, found.speedup
    cards(
        Card(
            "Dynamic: tokens per step",
            f"{tokens.value:.2f}",
            interval(tokens.low, tokens.high),
            help="Grown on rows kept of the calibration's prompts; the interval is by prompts.",
        ),
        Card(
            "Dynamic: predicted speedup",
            f"{speedup.value:.2f}×",
            "against 1.00×" if static is None else f"static {static.speedup.value:.2f}×",
            help="Tokens per step × seconds of a plain token ÷ seconds of a step.",
        ),
        Card(
            "Dynamic: seconds of a step",
            f"{1e3 * found.step.total_sec:.1f} ms",
            f"drafting {found.step.draft_sec / found.step.total_sec:.0%}",
            help="Verifying, drafting and the rest, by the profile.",
        ),
    )


def last_run() -> None:
    """Draw the trees that occurred in this session's last run, if it had more than one shape."""
    st.subheader("Trees that occurred")
    run = session.last_run()
    if run is None or len(run["shapes"]) < 2 or not run["steps"]:
        st.caption("Decode with trees that change from step to step, and those of the last run are shown here.")
        return
    trees = [TokenTree(parents) for parents in run["shapes"]]
    found = gallery(trees, [step["shape"] for step in run["steps"]])
    shown = {"Typical": found.typical, "Widest": found.widest, "Deepest": found.deepest}
    for column, (name, tree) in zip(st.columns(3), shown.items(), strict=True):
        column.markdown(f"**{name}:** {shape(tree.size, tree.depth)}")
        column.plotly_chart(
            charts.tree_thumbnail(tree.to_networkx(score=node_scores(tree, session.acceptance()))),
            width="stretch",
            key=f"tree_gallery_{name.lower()}",
            alt=f"{name} tree of the last run: {tree.size} nodes, {tree.depth + 1} levels",
        )
    st.plotly_chart(
        charts.sizes_figure(found.sizes, found.steps),
        width="stretch",
        key="tree_gallery_sizes",
        alt="How many steps of the last run had trees of each size",
    )
    st.caption(
        f"The last run ({escaped(runs.made_with(run))}; {escaped(run['tree_source'])}): "
        f"{count(len(run['steps']), 'step')}, {count(len(trees), 'different tree')} of "
        f"{between(found.sizes[0], found.sizes[-1], '{}')} nodes."
    )
