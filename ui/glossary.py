"""What the words and letters of all pages mean, the documents, and the version: behind one "?" in the sidebar."""

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import streamlit as st

ROOT = Path(__file__).resolve().parents[1]
WORDS = {
    "target, draft": "the large model whose text is kept exactly; the small one that guesses",
    "pass": "one computation of a model over some tokens at once",
    "step": "guesses are drafted, one target pass checks them, the accepted ones and a bonus token are kept",
    "rank k": "the draft's first, second, … guess for the same place",
    "acceptance pₖ": "how often the guess of rank k is the one kept; a vector holds all ranks",
    "size n, depth d": "tokens in one target pass, the root included; draft passes per step (the paper's D = d + 1)",
    "f(v)": "the chance that node v of a tree is reached and accepted",
    "tokens per step": "what one step adds to the text; F(T) of a tree, G(n, d) of the best of a size and depth",
    "t(n), c": "time of a target pass over n tokens, and of a draft pass, ÷ that of a target pass over one",
    "speedup": "tokens per second ÷ those of the same target without a draft",
    "K, draft length": "tokens that a server drafts in a row",
    "P, Q, R": "what target and draft think of the next token; what is left of P after rejections",
}
SPEEDUPS = (
    "**Two speedups differ?** Look at what each names: the machine and its threads, the draft, the temperature, the "
    "prompt, how a token without a draft was timed, and whether it was measured or predicted."
)


def draw() -> None:
    """Draw the popover, and beside it what opens the documents."""
    with st.container(horizontal=True):
        with st.popover("What the words mean", icon=":material/help:", type="tertiary", key="glossary"):
            st.markdown("\n".join(f"- **{word}**: {meaning}" for word, meaning in WORDS.items()))
            st.markdown(SPEEDUPS)
            st.caption(f"Sequoia Studio {version_here()}")
        if st.button("Documents", icon=":material/menu_book:", type="tertiary", key="documents"):
            _read()


def documents_here() -> dict[str, Path]:
    """Return the documents by their titles."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CHANGELOG.md"]
    return {path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# "): path for path in paths if path.is_file()}


def version_here() -> str:
    """Return the installed version."""
    try:
        return version("sequoia-studio")
    except PackageNotFoundError:
        return "of this folder"


@st.dialog("Documents", width="large")
def _read() -> None:
    documents = documents_here()
    name = st.selectbox("Document", list(documents), key="document", label_visibility="collapsed")
    # pictures and links between the files lead nowhere in the app
    st.markdown(re.sub(r"!?\[([^\]]*)\]\((?!http)[^)]*\)", r"\1", documents[name].read_text(encoding="utf-8")))
