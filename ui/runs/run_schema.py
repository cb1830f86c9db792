"""The contents of a run file, a header and one record per step; a run in memory has the same fields.

In memory, a run is a plain dict with the header's fields and `steps`. n is the number of nodes in a step's tree,
including the root. Older files may lack the fields that have a default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, JsonValue

from sequoia_core.acceptance.conditions import MEASURED_VERIFIERS, TRAVERSAL
from sequoia_core.models.chat import ROLES
from ui.tree_layout import MAX_DRAWN

RUN_FORMAT = "sequoia-run"
RUN_VERSION = 2
MAX_RUN_STEPS = 10_000
MAX_TURNS = 10_000
MAX_ARGUMENTS = 100
MAX_SETTINGS = 100
MAX_SETTING_CHARS = 100
MAX_LIKELY = 100
if TYPE_CHECKING:  # mypy does not accept computed literals
    Role: TypeAlias = str
    Format: TypeAlias = str
    Version: TypeAlias = int
    Verifier: TypeAlias = str
else:
    Role = Literal[ROLES]
    Format = Literal[RUN_FORMAT]
    Version = Literal[RUN_VERSION]
    Verifier = Literal[(*MEASURED_VERIFIERS, TRAVERSAL)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[FiniteFloat, Field(ge=0)]
Probability = Annotated[FiniteFloat, Field(ge=0, le=1)]
Setting = Annotated[str, Field(max_length=MAX_SETTING_CHARS)]
Parents = Annotated[list[int], Field(max_length=MAX_DRAWN)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class BaselineRecord(_Strict):
    tokens: Count
    seconds: Positive


class LoadRecord(_Strict):
    """The share of the cores that other processes used during the run, and the number of such processes."""

    share: Probability
    processes: Count


class TurnRecord(_Strict):
    role: Role
    text: str


class RunHeader(_Strict):
    """A run's settings, device, pair and prediction."""

    format: Format
    version: Version
    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    prompt: str
    turns: Annotated[list[TurnRecord], Field(max_length=MAX_TURNS)] = []
    remarks: Annotated[list[str], Field(max_length=MAX_TURNS)] = []
    prompt_ending: Annotated[str, Field(max_length=80)] | None = None
    template_arguments: Annotated[dict[str, JsonValue], Field(max_length=MAX_ARGUMENTS)] = {}
    tree_source: str
    temperature: Positive
    top_p: Annotated[FiniteFloat, Field(gt=0, le=1)]
    first_cut: bool | None = None  # if None and top-p < 1, the run drew first children from rows before the top-p cut
    max_new_tokens: Annotated[int, Field(ge=1)]
    verifier: Verifier
    seed: int
    target: str | None
    draft: str | None
    head: bool = False
    dtype: str | None
    device: str | None
    settings_left_out: Annotated[list[Setting], Field(max_length=MAX_SETTINGS)] = []
    offload: Literal["disk", "host"] | None = None
    read_bytes_per_sec: Positive | None = None
    expected_tokens: Positive | None
    predicted_speedup: Positive | None
    prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    predicted_interval: Annotated[list[Positive], Field(min_length=2, max_length=2)] | None = None
    baseline: BaselineRecord | None
    load: LoadRecord | None = None
    text: str
    shapes: Annotated[list[Parents], Field(max_length=MAX_RUN_STEPS)]


class LikelyTokens(_Strict):
    texts: Annotated[list[str], Field(max_length=MAX_LIKELY)]
    probs: list[Probability]


class PathRow(_Strict):
    """The rows at one node of the path, and the mean probability that each verifier accepts a child."""

    node: int
    target: LikelyTokens
    draft: LikelyTokens
    residuals: Annotated[list[LikelyTokens], Field(max_length=MAX_DRAWN)]  # the target's rows after each rejection
    accepted: dict[Literal["sequoia", "specinfer", "topk", "best"], Probability] | None = None


class LeftOutNode(_Strict):
    parent: Count
    text: str | None  # None for the first child of a node that the draft did not read
    gain: Probability


class MarginalRecord(_Strict):
    """Each node's expected gain and cost, in tokens, for a tree that was grown during the step."""

    gains: list[Probability]
    costs: list[Positive | None]
    next_cost: Positive | None
    left_out: Annotated[list[LeftOutNode], Field(max_length=MAX_LIKELY)]


class LookupMatch(_Strict):
    """An earlier occurrence of a looked-up token, after `match` matching tokens, in this text or an earlier one."""

    match: Annotated[int, Field(ge=1)]
    earlier: bool
    before: str
    after: str  # the token and the text that followed it
    drafted: bool = False  # whether the draft also proposed the token


class StepRecord(_Strict):
    index: int
    shape: Count  # index of the step's tree in the run's `shapes`
    tokens: list[str]  # [n]
    outcomes: Annotated[str, Field(pattern="^[ARN]*$")]  # [n], accepted, rejected or not reached
    draft: list[FiniteFloat | None]  # [n], probabilities
    target: list[FiniteFloat | None]  # [n], probabilities
    path: Annotated[list[int], Field(min_length=1)]  # nodes
    bonus: str | None  # None if the run ended before the bonus token
    pieces: list[str]  # text of each committed token
    trials: list[Annotated[list[FiniteFloat | None], Field(min_length=4, max_length=4)]]  # [node, r, R[s], D[s]]
    seconds: Annotated[list[Positive], Field(min_length=4, max_length=4)]  # draft, verify, walk, commit
    read_wait_sec: Positive = 0.0  # the part of `seconds` spent waiting for weights
    finished: Literal["eos", "length", "context"] | None
    rows: list[PathRow] = []  # one per node of the path
    marginal: MarginalRecord | None = None
    found_at: list[LookupMatch | None] = []  # [n], None for a node that was not looked up
