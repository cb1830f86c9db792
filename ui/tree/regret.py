"""One tree for all? What a tree loses when the acceptance it was designed for is not the one that holds."""

import streamlit as st

from ui import charts, controls
from ui.cards import Card, cards
from ui.markdown import escaped
from ui.session import core_cache, session

DEFAULT_SHAPE = (64, 8)  # large enough for trees to differ; those planned for a small CPU are all alike
MOST = 10  # vectors a matrix stays readable with


def section() -> None:
    """Draw what each of some vectors' trees loses where another vector holds."""
    st.caption(
        "Must the tree be designed anew for every temperature, domain and pair, or does one serve all? "
        "Each cell is what a tree loses where another vector holds."
    )

    vectors = session.vectors()
    if not vectors:
        session.acceptance()  # says what is missing, and stops
    chosen = st.pills(
        "Acceptance vectors",
        list(vectors),
        selection_mode="multi",
        default=list(vectors)[: min(MOST, 4)],
        key="regret_vectors",
        bind="query-params",
        help="Shipped ones and those of this session: measure or upload more on the draft page.",
    )
    n, d = controls.size_and_depth_sliders(
        *st.columns(2),
        keys=("regret_n", "regret_d"),
        default=DEFAULT_SHAPE,
        smallest=2,
        size_help="the root included; the same for every tree of the matrix.",
    )
    if len(chosen) > MOST:
        st.info(f"The first {MOST} of the {len(chosen)} chosen are compared.", icon=":material/info:")
        chosen = chosen[:MOST]
    if len(chosen) < 2:
        st.info("Choose at least two vectors.", icon=":material/info:")
        return
    picked = tuple(vectors[name] for name in chosen)
    try:
        regret = core_cache.regret(picked, n, d)
    except ValueError as error:
        st.warning(f"{escaped(str(error))}. Raise the depth or lower the size.", icon=":material/warning:")
        return

    tree, holds = (escaped(chosen[i]) for i in regret.worst)
    safest = escaped(chosen[regret.safest])
    cards(
        Card(
            "Largest regret",
            f"{regret.lost[regret.worst]:.3f} tokens/step",
            f"{regret.share[regret.worst]:.1%} of that vector's best",
            help=f"The tree for {tree} where {holds} holds.",
        ),
        Card(
            "Mean regret",
            f"{regret.mean:.3f} tokens/step",
            "over all pairs of two",
            help="Over all pairs of different vectors, each as likely; a tree under its own vector loses nothing.",
        ),
        Card(
            "Safest tree",
            safest,
            f"loses at most {regret.lost[regret.safest].max():.3f}",
            help="The tree whose largest regret over the chosen vectors is smallest.",
        ),
    )
    st.plotly_chart(
        charts.regret_figure(chosen, regret.lost),
        width="stretch",
        key="regret_matrix",
        alt=f"Tokens per step that each row's tree loses under each column's vector; at most {regret.lost.max():.3f}",
    )
    if regret.lost.max() < 1e-9:
        st.markdown(f"With n = {n} and d ≤ {d} all the chosen vectors want the same tree, or trees equally good.")
    else:
        st.markdown(
            f"With n = {n} and d ≤ {d}, the tree for **{tree}** used where **{holds}** holds loses "
            f"{regret.lost[regret.worst]:.3f} tokens per step, the most of any pair. If you can keep only one tree, "
            f"take the one for **{safest}**."
        )
    controls.download(
        "Download as CSV",
        regret.to_frame(chosen).to_csv(),
        f"regret-n{n}-d{d}.csv",
        key="regret_csv",
    )
