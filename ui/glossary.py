"""The sidebar's popover with the glossary, the documents and the version."""

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import streamlit as st

ROOT = Path(__file__).resolve().parents[1]
WORDS = {
    "target, draft": "the large model whose output is preserved exactly; the small one that guesses",
    "pass": "one forward computation of a model over one or more tokens",
    "step": "guesses are drafted, one target pass verifies them, and the accepted ones and a bonus token are added",
    "rank k": "the draft's first, second, … guess for the same position",
    "acceptance pₖ": "how often the guess of rank k is accepted; a vector lists all ranks",
    "size n, depth d": "tokens in one target pass, including the root; draft passes per step (the paper's D = d + 1)",
    "f(v)": "the probability that node v of a tree is reached and accepted",
    "tokens per step": "tokens that one step adds to the text; F(T) for a tree, G(n, d) for the best of a shape",
    "t(n), c": "time of a target pass over n tokens, and of a draft pass, ÷ time of a target pass over one token",
    "speedup": "tokens per second ÷ tokens per second of the same target without a draft",
    "K, draft length": "number of tokens that a server drafts in a row",
    "vector": "the acceptance of every rank, measured on one pair at one setting",
    "profile": "the times of one pair's passes on one machine",
    "verifier": "the rule that accepts or rejects guesses without changing the distribution of the output",
    "lookup": "guesses copied from what followed the same tokens earlier; needs no draft model",
    "adaptive, SpecExec, hybrid": "trees grown anew at each step: while a guess pays, up to a budget, or with lookup",
    "head": "a small draft fed with the target's internal features (EAGLE-3, DFlash, MTP)",
    "sweep": "a series of measurements of drafts, temperatures and kinds of text",
    "regret": "tokens lost by using a tree that was planned for another vector",
    "cover": "children that include every token that the target can choose, so that one is always accepted",
    "optimal transport": "accepting a child as often as any rule can that preserves the target's distribution",
    "isotonic": "the closest vector whose entries never increase",
    "P, Q, R": "distributions of target and draft for the next token; the residual of P after rejections",
}
SPEEDUPS = (
    "**Two speedups differ?** Compare their conditions: the machine and its threads, the draft, the temperature, the "
    "prompt, the baseline, and whether it was measured or predicted."
)


def draw_glossary() -> None:
    """Draw the popover that contains the glossary, and the button that opens the documents."""
    with st.container(gap="xxsmall"):
        with st.popover("Glossary", icon=":material/help:", type="tertiary", key="glossary"):
            st.markdown("\n".join(f"- **{word}**: {meaning}" for word, meaning in WORDS.items()))
            st.markdown(SPEEDUPS)
            st.caption(f"Sequoia Studio {installed_version()}")
        if st.button("Documents", icon=":material/menu_book:", type="tertiary", key="documents"):
            _show_documents()


def list_documents() -> dict[str, Path]:
    """Return the paths of the documents by title."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CHANGELOG.md"]
    return {path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# "): path for path in paths if path.is_file()}


def installed_version() -> str:
    """Return the installed version of the app."""
    try:
        return version("sequoia-studio")
    except PackageNotFoundError:
        return "(not installed)"


@st.dialog("Documents", width="large")
def _show_documents() -> None:
    documents = list_documents()
    name = st.selectbox("Document", list(documents), key="document", label_visibility="collapsed")
    # Images and links between documents do not work in the app.
    st.markdown(re.sub(r"!?\[([^\]]*)\]\((?!http)[^)]*\)", r"\1", documents[name].read_text(encoding="utf-8")))
