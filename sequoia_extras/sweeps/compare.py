"""Compare the drafters in a sweep at each sampling setting and on each kind of text. m = number of prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sequoia_core.acceptance.bootstrap import Estimate, ratio_estimate
from sequoia_core.acceptance.calibration import MAX_PROMPTS
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.trees.comparison import regret_matrix
from sequoia_core.trees.optimal import SEARCHABLE_SIZE, optimal_tree
from sequoia_core.trees.replay import replay
from sequoia_core.trees.tree import TokenTree

from .plan import BOTH, DRAFTERS, LOOKUP, MODEL
from .results import PROMPT_COLUMNS, PROMPTING_COLUMNS, acceptance_sums, build_vector, cuts_first

if TYPE_CHECKING:
    import pandas as pd

ALL_DOMAINS = ""  # used in place of a domain's name
ALL_DOMAINS_LABEL = "all texts"
# Columns that must not have gaps, by the kinds of rows that need them.
REQUIRED_COLUMNS = {
    DRAFTERS: "temperature top_p seed new_tokens width max_size pair target draft domain prompt prompt_hash",
    (MODEL,): "positions sums ranks calibration",
    (LOOKUP, BOTH): "tokens steps nodes draft_widths",
}
# Columns that must have one value throughout a comparison, and the kinds of rows that depend on them.
SHARED_COLUMNS = {
    "version": DRAFTERS,
    "seed": DRAFTERS,
    "threads": DRAFTERS,
    "new_tokens": DRAFTERS,
    "width": (MODEL, BOTH),
}
DRAFTER_COLUMNS = ["target_hash", "draft_hash", "tokenizer_hash", "dtype_used", "offload", "device"]


class SweepDrafter(NamedTuple):
    """A drafter for a target: a draft model, lookup, or both.

    Attributes:
        name: unique name in a comparison: the pair's name, "lookup", or the pair's name followed by "+ lookup".
        kind: one of `DRAFTERS`.
        target, draft: model names; the draft is "none" if there is no draft.
        target_hash, draft_hash: content hashes of their files.
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
        """The target that this drafter speeds up, as loaded; only drafters with the same base are comparable."""
        return self.target_hash, self.dtype, self.offload


class Setting(NamedTuple):
    """A sampling setting and a domain, or all domains."""

    temperature: float
    top_p: float
    domain: str = ALL_DOMAINS

    @property
    def sampling(self) -> str:
        return f"T = {self.temperature:.12g}" + (f", top-p {self.top_p:.12g}" if self.top_p < 1 else "")

    @property
    def texts(self) -> str:
        return f"“{self.domain}”" if self.domain == ALL_DOMAINS_LABEL else self.domain or ALL_DOMAINS_LABEL

    def __str__(self) -> str:
        return f"{self.sampling}, {self.texts}"


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """The results of one drafter at one setting.

    Attributes:
        rows: result rows, [m]; for decoded trees, those of the largest size; at most as many as a vector stores.
        sizes: maximum tree size -> its rows, [m], over the same prompts; empty for a draft model.
        prompts: a row per prompt with tokens, indexed by `PROMPT_COLUMNS`; columns `prompt`, `tokens` and `steps`.
        tokens_per_step: estimate with an interval over prompts.
        vector: the draft model's vector; None for lookup and both, as are the following attributes.
        tree: best tree of the largest size.
        texts_regret: share of tokens per step lost by using the best tree for all domains at this sampling setting;
            None if there is only one domain.
        temperatures_regret: share lost by using the best tree for all sampling settings in this domain; None if there
            is only one.
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
        """p1, the probability that the draft's first guess is accepted."""
        return None if self.vector is None else float(self.vector.probs[0])


Key = tuple[SweepDrafter, Setting]


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """All cells of a sweep.

    Attributes:
        drafters, settings: all of them in display order.
        max_size: number of nodes of the largest tree.
        notes: which rows were left out, and why.
    """

    drafters: tuple[SweepDrafter, ...]
    settings: tuple[Setting, ...]
    cells: Mapping[Key, Cell]
    max_size: int
    notes: tuple[str, ...]


def compare_sweep(rows: pd.DataFrame) -> Comparison:
    """Compare the rows of a sweep, as returned by `read_rows`."""
    rows, notes = _consistent_rows(rows[rows["kind"].isin(DRAFTERS)])
    if rows.empty:
        raise ValueError("results: found no measured prompts, expected at least one")
    _check_rows(rows)
    rows = rows.assign(**{column: rows[column].fillna("") for column in DRAFTER_COLUMNS})
    size = min(int(rows["max_size"].max()), SEARCHABLE_SIZE)
    parts = _rows_by_drafter(rows)
    doubled = len(rows) - sum(map(len, parts.values()))
    if doubled:
        notes.append(
            f"{doubled} rows are left out: their prompts were also measured with other chat, tokenizer or calibration "
            "settings"
        )
    samplings = sorted({(float(t), float(p)) for t, p in zip(rows["temperature"], rows["top_p"], strict=True)})
    domains = sorted(rows["domain"].unique())
    if len(domains) > 1:
        domains.insert(0, ALL_DOMAINS)
    settings = tuple(Setting(*sampling, domain) for sampling in samplings for domain in domains)
    cells: dict[Key, Cell] = {}
    incomplete = 0
    for drafter, part in parts.items():
        for setting in settings:
            here = _rows_at(part, setting)
            # `ALL_DOMAINS` must cover the same domains for every drafter.
            if here.empty or here["domain"].nunique() != _rows_at(rows, setting)["domain"].nunique():
                continue
            cell = _decoded_cell(here) if drafter.kind != MODEL else _model_cell(here, size, part, setting)
            if cell is None:
                continue
            cells[drafter, setting] = cell
            if cell.sizes and setting.domain != ALL_DOMAINS:
                incomplete += len(here) - sum(map(len, cell.sizes.values()))
    if incomplete:
        notes.append(f"{incomplete} rows are left out: most tree sizes were decoded on different prompts")
    return Comparison(tuple(parts), settings, cells, size, tuple(notes))


def _consistent_rows(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of the latest version that share the most common settings, and notes on the others."""
    notes = []
    for column, kinds in SHARED_COLUMNS.items():
        relevant = rows["kind"].isin(kinds)
        values = rows[column]
        if column == "version":
            # Where top-p truncates the rows of first children, the version is one higher.
            values = values - cuts_first(rows["kind"], rows["temperature"], rows["top_p"])
        if values[relevant].nunique() > 1:
            chosen = values[relevant].max() if column == "version" else values[relevant].mode().iloc[-1]
            other = relevant & (values != chosen)
            notes.append(f"{int(other.sum())} rows are left out: their {column} is not {chosen}")
            rows = rows[~other]
    for column in PROMPTING_COLUMNS:  # null in rows from older versions
        by_text = rows.groupby(["domain", "target_hash"], dropna=False)[column]
        other = rows[column].notna() & (rows[column] != by_text.transform(lambda values: values.mode().get(0)))
        if other.any():
            found = ", ".join(f"{value!r}" for value in sorted(rows.loc[other, column].unique()))
            notes.append(f"{int(other.sum())} rows are left out: their {column} is unusual ({found})")
            rows = rows[~other]
    return rows, notes


def _check_rows(rows: pd.DataFrame) -> None:
    """Raise ValueError for rows with missing values and for inconsistent decoded rows."""
    for kinds, columns in REQUIRED_COLUMNS.items():
        gaps = rows.loc[rows["kind"].isin(kinds), columns.split()].isna().any()
        if gaps.any():
            raise ValueError(f"{gaps.idxmax()}: found rows without a value, expected one in each row")
    for row in rows[rows["kind"] != MODEL].itertuples():
        steps = int(row.steps)
        listed = len(row.nodes) == len(row.draft_widths) == steps
        if not (listed and 1 <= steps <= row.tokens and min(row.nodes) >= 1):
            raise ValueError(
                f"row {row.key}: found {row.tokens:g} tokens in {steps} steps, expected node counts for each step"
            )


def _rows_by_drafter(rows: pd.DataFrame) -> dict[SweepDrafter, pd.DataFrame]:
    """Return the rows of each drafter; lookup belongs to a target, regardless of the pair it was measured with."""
    one_base = len(rows[["target_hash", "dtype_used", "offload"]].drop_duplicates()) == 1
    parts = []
    for kind in DRAFTERS:
        once = [*DRAFTER_COLUMNS, "temperature", "top_p", *PROMPT_COLUMNS]
        if kind != MODEL:
            once.append("max_size")
        for _, part in rows[rows["kind"] == kind].drop_duplicates(once).groupby(DRAFTER_COLUMNS):
            pair = _commonest(part["pair"])
            lookup = "lookup" if one_base else f"lookup, {pair}"
            parts.append(({MODEL: pair, LOOKUP: lookup, BOTH: f"{pair} + lookup"}[kind], part))
    by_drafter: dict[SweepDrafter, pd.DataFrame] = {}
    for name, part in parts:
        first = part.iloc[0]
        namesakes = [each for other, each in parts if other == name]
        differing = [column for column in DRAFTER_COLUMNS if len({each[column].iloc[0] for each in namesakes}) > 1]
        if differing:
            name = f"{name} ({', '.join(first[column][:8] or 'none' for column in differing)})"
        drafter = SweepDrafter(
            name,
            first["kind"],
            target=_commonest(part["target"]),
            draft=_commonest(part["draft"]),
            target_hash=first["target_hash"],
            draft_hash=first["draft_hash"],
            dtype=first["dtype_used"],
            offload=first["offload"],
        )
        by_drafter[drafter] = part
    return by_drafter


def _commonest(names: pd.Series) -> str:
    """Return the most common name of a model or pair; names vary if folders move or pairs are renamed."""
    return str(names.mode().iloc[0])


def _rows_at(rows: pd.DataFrame, setting: Setting) -> pd.DataFrame:
    at = (rows["temperature"] == setting.temperature) & (rows["top_p"] == setting.top_p)
    return rows[at & ((rows["domain"] == setting.domain) | (setting.domain == ALL_DOMAINS))]


def _tokens_per_step(prompts: pd.DataFrame) -> Estimate:
    return ratio_estimate(prompts["tokens"].to_numpy(), prompts["steps"].to_numpy(), few=True)


def _decoded_cell(rows: pd.DataFrame) -> Cell:
    """Return the cell for one drafter's decodes at one setting."""
    sizes = {int(size): part for size, part in rows.groupby("max_size")}
    texts = {size: set(part[PROMPT_COLUMNS].itertuples(index=False, name=None)) for size, part in sizes.items()}
    # In an unfinished sweep, some sizes lack prompts.
    fullest = max(texts, key=lambda size: (len(texts[size]), size))
    sizes = {size: part for size, part in sizes.items() if texts[size] == texts[fullest]}
    rows = sizes[max(sizes)]
    prompts = decoded_prompts(rows)
    return Cell(rows, sizes, prompts, _tokens_per_step(prompts))


def _model_cell(rows: pd.DataFrame, size: int, part: pd.DataFrame, setting: Setting) -> Cell | None:
    """Return the cell for a draft model's rows at one setting; None if no answer has tokens."""
    if not rows["positions"].sum():
        return None
    rows = rows.head(MAX_PROMPTS)  # keys are hashes, so this is as good as a random choice
    vector = build_vector(rows)
    tree = optimal_tree(vector, size=size)
    prompts = replayed_prompts(rows, vector, tree)
    same_sampling = _rows_at(part, setting._replace(domain=ALL_DOMAINS))
    same_domain = part[(part["domain"] == setting.domain) | (setting.domain == ALL_DOMAINS)]
    regrets = [
        _regret(shared, vector, size) if len(shared) > len(rows) else None for shared in (same_sampling, same_domain)
    ]
    return Cell(rows, {}, prompts, _tokens_per_step(prompts), vector, tree, *regrets)


def decoded_prompts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the tokens and steps of each decoded text, indexed by `PROMPT_COLUMNS`."""
    return rows.set_index(PROMPT_COLUMNS)[["prompt", "tokens", "steps"]].astype({"tokens": int, "steps": int})


def replayed_prompts(rows: pd.DataFrame, vector: AcceptanceVector, tree: TokenTree) -> pd.DataFrame:
    """Replay a tree; return the tokens and steps of each measured text, indexed by `PROMPT_COLUMNS`."""
    texts = replay(tree, vector)
    assert texts is not None, "a sweep's rows store the accepted ranks"
    prompts = rows[rows["positions"] > 0].set_index(PROMPT_COLUMNS)[["prompt"]]
    return prompts.assign(tokens=texts.tokens, steps=texts.steps)


def _regret(shared: pd.DataFrame, vector: AcceptanceVector, size: int) -> float:
    """Return the share of tokens per step that the best tree for pooled rows loses under one vector."""
    sums = acceptance_sums(shared)
    positions = shared["positions"].to_numpy()
    trials = [np.maximum(positions - level, 0).sum() for level in range(len(sums[0]))]
    pooled = AcceptanceVector.from_levels(np.sum(sums, axis=0) / np.maximum(trials, 1)[:, None])
    return float(regret_matrix([pooled, vector], size=size, depth=size - 1).share[0, 1])
