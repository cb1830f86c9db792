"""Sweeps compared: what each drafter yields on each kind of text, and which one pays on some hardware. m = prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..design.acceptance import AcceptanceVector, of_levels
from ..design.bootstrap import Estimate, ratio_estimate
from ..design.calibration import MAX_PROMPTS
from ..design.optimal_trees import optimal_tree
from ..design.replay import replay
from ..design.tree import TokenTree
from ..design.tree_comparison import regret_matrix
from ..design.tree_search import REACH
from .plan import BOTH, DRAFTERS, LOOKUP, MODEL
from .results import PROMPT, PROMPTED, cuts_first, sums_of, vector_of

if TYPE_CHECKING:
    import pandas as pd

ALL, EVERY = "", "all texts"  # in place of a domain: all of them, and what people read then
ALWAYS = (
    "temperature", "top_p", "seed", "new_tokens", "width", "max_size", "pair", "target", "draft", "domain", "prompt",
    "prompt_hash",
)  # fmt: skip
MEASURED = ("positions", "sums", "ranks", "calibration")  # columns of kind "model", and of the other two
DECODED = ("tokens", "steps", "nodes", "draft_widths")
# What rows of one comparison share, and the kinds of rows that depend on it.
SHARED = {
    "version": DRAFTERS, "seed": DRAFTERS, "threads": DRAFTERS, "new_tokens": DRAFTERS, "width": (MODEL, BOTH),
}  # fmt: skip
# What the rows of one drafter share.
SAME = ("target_hash", "draft_hash", "tokenizer_hash", "dtype_used", "offload", "device")


class Drafter(NamedTuple):
    """Who drafts for a target: a draft model, lookup, or both.

    Attributes:
        name: unique in a comparison: the pair's, "lookup", or the pair's with "+ lookup".
        kind: one of `DRAFTERS`.
        target, draft: names of models, "none" where there is no draft.
        target_hash, draft_hash: of their files' content.
    """

    name: str
    kind: str
    target: str
    draft: str
    target_hash: str
    draft_hash: str
    dtype: str
    offload: str

    @property
    def base(self) -> tuple[str, str, str]:
        """What it speeds up: only drafters of one base compare."""
        return self.target_hash, self.dtype, self.offload


class Setting(NamedTuple):
    """A way of sampling and a kind of text, or all kinds."""

    temperature: float
    top_p: float
    domain: str = ALL

    @property
    def sampling(self) -> str:
        return f"T = {self.temperature:.12g}" + (f", top-p {self.top_p:.12g}" if self.top_p < 1 else "")

    @property
    def texts(self) -> str:
        return f"“{self.domain}”" if self.domain == EVERY else self.domain or EVERY

    def __str__(self) -> str:
        return f"{self.sampling}, {self.texts}"


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """What one drafter yields at one setting.

    Attributes:
        rows: of the sweep, [m], of the largest size; of measured ones no more than a vector keeps.
        sizes: largest tree -> its rows, [m] each of the same prompts; empty for measured ones.
        prompts: a row for each prompt whose text has tokens, by `PROMPT`: prompt, tokens, steps.
        tokens_per_step: with an interval over prompts.
        vector: measured; None where trees were decoded instead, and so for the next ones.
        tree: the best of the largest size.
        texts_regret, temperatures_regret: share of the tokens per step lost by the tree for all kinds of text at this
            way of sampling, or for all ways of sampling such text; None where there is nothing to share it with.
    """

    rows: pd.DataFrame
    sizes: Mapping[int, pd.DataFrame]
    prompts: pd.DataFrame
    tokens_per_step: Estimate
    vector: AcceptanceVector | None = None
    tree: TokenTree | None = None
    texts_regret: float | None = None
    temperatures_regret: float | None = None

    @property
    def first_guess(self) -> float | None:
        """p1, the chance that the draft's first guess is the accepted one."""
        return None if self.vector is None else float(self.vector.probs[0])


Key = tuple[Drafter, Setting]


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """All cells of a sweep.

    Attributes:
        drafters, settings: in the order in which people read them.
        max_size: nodes of the largest tree.
    """

    drafters: tuple[Drafter, ...]
    settings: tuple[Setting, ...]
    cells: Mapping[Key, Cell]
    max_size: int
    notes: tuple[str, ...]


def compare(rows: pd.DataFrame) -> Comparison:
    """Compare the results of a sweep, `read_rows`."""
    rows, notes = _alike(rows[rows["kind"].isin(DRAFTERS)])
    if rows.empty:
        raise ValueError("results: found no prompt that was measured, expected some")
    _check(rows)
    rows = rows.assign(**{column: rows[column].fillna("") for column in SAME})
    size = min(int(rows["max_size"].max()), REACH)
    parts = _by_drafter(rows)
    if (doubled := len(rows) - sum(map(len, parts.values()))) > 0:
        notes.append(
            f"{doubled} rows of prompts measured in another way too (chat, tokenizer, calibration) are left out"
        )
    ways = sorted({(float(t), float(p)) for t, p in zip(rows["temperature"], rows["top_p"], strict=True)})
    domains = sorted(rows["domain"].unique())
    kinds = [ALL, *domains] if len(domains) > 1 else domains
    settings = tuple(Setting(*way, kind) for way in ways for kind in kinds)
    cells, unlike = {}, 0
    for drafter, part in parts.items():
        for setting in settings:
            here = _at(part, setting)
            everywhere = _at(rows, setting)["domain"].nunique()  # all texts means the same for every drafter
            if len(here) and here["domain"].nunique() == everywhere:
                cells[drafter, setting] = cell = _cell(here, size, part, setting)
                if cell is not None and cell.sizes and setting.domain != ALL:
                    unlike += len(here) - sum(map(len, cell.sizes.values()))
    if unlike:
        notes.append(f"{unlike} rows of sizes that were decoded on other prompts than most are left out")
    return Comparison(tuple(parts), settings, {k: c for k, c in cells.items() if c is not None}, size, tuple(notes))


def _alike(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of the latest version that share the commonest value of each of `SHARED`, and what others had."""
    notes = []
    for column, kinds in SHARED.items():
        depends = rows["kind"].isin(kinds)
        told = rows[column]
        if column == "version":  # rows of one time have a higher one where first children are drawn from cut rows
            told = told - cuts_first(rows["kind"], rows["temperature"], rows["top_p"])
        values = told[depends]
        if values.nunique() > 1:
            kept = values.max() if column == "version" else values.mode().iloc[-1]
            other = depends & (told != kept)
            notes.append(f"{int(other.sum())} rows with another {column} than {kept} are left out")
            rows = rows[~other]
    for column in PROMPTED:  # of one kind of text and one target; rows of older versions do not say it
        usual = rows.groupby(["domain", "target_hash"], dropna=False)[column].transform(lambda told: told.mode().get(0))
        other = rows[column].notna() & (rows[column] != usual)
        if other.any():
            had = ", ".join(f"{value!r}" for value in sorted(rows.loc[other, column].unique()))
            notes.append(f"{int(other.sum())} rows with another {column} than most of their texts, {had}, are left out")
            rows = rows[~other]
    return rows, notes


def _check(rows: pd.DataFrame) -> None:
    """Refuse decoded rows that contradict themselves."""
    for kinds, own in ((DRAFTERS, ALWAYS), ((MODEL,), MEASURED), ((LOOKUP, BOTH), DECODED)):
        part = rows[rows["kind"].isin(kinds)]
        if (gaps := part[[*own]].isna().any()).any():
            raise ValueError(f"{gaps.idxmax()}: found rows without it, expected a value in each")
    for row in rows[rows["kind"] != MODEL].itertuples():
        steps = int(row.steps)
        lists = len(row.nodes) == len(row.draft_widths) == steps
        if not (lists and 1 <= steps <= row.tokens and min(row.nodes) >= 1):
            raise ValueError(
                f"row {row.key}: found {row.tokens:g} tokens in {steps} steps, expected nodes of each step"
            )


def _by_drafter(rows: pd.DataFrame) -> dict[Drafter, pd.DataFrame]:
    """Return the rows of each drafter; those of lookup belong to a target, whatever pair they were measured with."""
    one_base = len(rows[["target_hash", "dtype_used", "offload"]].drop_duplicates()) == 1
    parts = []
    for kind in DRAFTERS:
        once = ["temperature", "top_p", *PROMPT, *([] if kind == MODEL else ["max_size"])]
        for _, part in rows[rows["kind"] == kind].drop_duplicates([*SAME, *once]).groupby([*SAME]):
            pair = _commonest(part["pair"])
            alone = "lookup" if one_base else f"lookup, {pair}"
            parts.append(({MODEL: pair, LOOKUP: alone, BOTH: f"{pair} + lookup"}[kind], part))
    by_drafter: dict[Drafter, pd.DataFrame] = {}
    for name, part in parts:
        same = [each for other, each in parts if other == name]
        told = [column for column in SAME if len({each[column].iloc[0] for each in same}) > 1]
        unique = f"{name} ({', '.join(part[column].iloc[0][:8] or 'none' for column in told)})" if told else name
        first = part.iloc[0]
        drafter = Drafter(
            unique, first["kind"], target=_commonest(part["target"]), draft=_commonest(part["draft"]),
            target_hash=first["target_hash"], draft_hash=first["draft_hash"], dtype=first["dtype_used"],
            offload=first["offload"],
        )  # fmt: skip
        by_drafter[drafter] = part
    return by_drafter


def _commonest(names: pd.Series) -> str:
    """Return one name for a model or pair: folders move, and pairs are renamed."""
    return str(names.mode().iloc[0])


def _at(rows: pd.DataFrame, setting: Setting) -> pd.DataFrame:
    at = (rows["temperature"] == setting.temperature) & (rows["top_p"] == setting.top_p)
    return rows[at & ((rows["domain"] == setting.domain) | (setting.domain == ALL))]


def _tokens_per_step(prompts: pd.DataFrame) -> Estimate:
    return ratio_estimate(prompts["tokens"].to_numpy(), prompts["steps"].to_numpy(), few=True)


def _cell(rows: pd.DataFrame, size: int, part: pd.DataFrame, setting: Setting) -> Cell | None:
    """Return what some rows of one drafter and setting say; None where no text of theirs has tokens."""
    if rows["kind"].iloc[0] != MODEL:
        sizes = {int(n): of_size for n, of_size in rows.groupby("max_size")}
        texts = {n: set(zip(*(of_size[column] for column in PROMPT), strict=True)) for n, of_size in sizes.items()}
        fullest = max(texts, key=lambda n: (len(texts[n]), n))  # in a sweep under way a size may lack prompts yet
        sizes = {n: of_size for n, of_size in sizes.items() if texts[n] == texts[fullest]}
        rows = sizes[max(sizes)]
        prompts = decoded_prompts(rows)
        return Cell(rows, sizes, prompts, _tokens_per_step(prompts))
    if not rows["positions"].sum():
        return None
    rows = rows.head(MAX_PROMPTS)  # in the order of keys, which is as good as drawn
    vector = vector_of(rows)
    tree = optimal_tree(vector, size=size)
    prompts = replayed(rows, vector, tree)
    same_way = _at(part, setting._replace(domain=ALL))
    same_texts = part[(part["domain"] == setting.domain) | (setting.domain == ALL)]
    regrets = [_regret(shared, vector, size) if len(shared) > len(rows) else None for shared in (same_way, same_texts)]
    return Cell(rows, {}, prompts, _tokens_per_step(prompts), vector, tree, *regrets)


def decoded_prompts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the tokens and steps of each decoded text, by `PROMPT`."""
    return rows.set_index(PROMPT)[["prompt", "tokens", "steps"]].astype({"tokens": int, "steps": int})


def replayed(rows: pd.DataFrame, vector: AcceptanceVector, tree: TokenTree) -> pd.DataFrame:
    """Return the tokens and steps of each measured text with a tree."""
    texts = replay(tree, vector)
    assert texts is not None, "rows of a sweep keep the accepted ranks"
    prompts = rows[rows["positions"] > 0].set_index(PROMPT)[["prompt"]]
    return prompts.assign(tokens=texts.tokens, steps=texts.steps)


def _regret(shared: pd.DataFrame, vector: AcceptanceVector, size: int) -> float:
    """Return what the best tree for the pooled rows loses where a vector holds, as a share."""
    sums, positions = sums_of(shared), shared["positions"].to_numpy()
    trials = [np.maximum(positions - level, 0).sum() for level in range(len(sums[0]))]
    pooled = of_levels(np.sum(sums, axis=0) / np.maximum(trials, 1)[:, None])
    return float(regret_matrix([pooled, vector], size=size, depth=size - 1).share[0, 1])
