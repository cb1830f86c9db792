"""What a sweep measures: the plan that a person writes as TOML, checked whole before anything runs."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError

from ...decoding.sampling import SamplingConfig
from ...design.tree import MAX_SIZE
from ...files.gguf_header import is_gguf
from ...files.json_models import fault_words
from ...files.model_names import NO_DRAFT
from ...files.prompt_files import load_prompts
from ...files.safe_files import read_bytes
from ...models.default_dtype import default_dtype
from ...models.loading import pair_facts
from ...models.pair_spec import PairSpec
from ...models.prompting import Prompting, encode_prompt
from .content import PairHashes, pair_hashes

MODEL, LOOKUP, BOTH = DRAFTERS = ("model", "lookup", "both")
MAX_JOBS = 100_000  # before they are split into parts
MAX_THREADS = 1024
SHOWN_FAULTS, MAX_FAULTS = 12, 100  # mistakes named at once, and looked for in the text
MAX_PLAN, MAX_LINES, MAX_TABLES = 256 * 2**10, 10_000, 200  # bytes, lines, and tables of a kind
MAX_DOTS = 200  # of a line: TOML's reader takes minutes for a key of 50,000 parts
TREE_DEPTH, RACE_DEPTH = 16, 32  # edges of a path at most: of the trees of "lookup" and "both", of those that are raced


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _once(values: tuple) -> tuple:
    return tuple(dict.fromkeys(values))


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PairSection(_Section):
    """A pair of a plan, with how it is loaded and who drafts.

    Attributes:
        name: shown in tables; unique within a plan.
        drafters: "model" measures the draft's acceptance, "lookup" decodes with trees from the text under way, "both"
            with trees that the draft and lookup propose for together.
    """

    name: Annotated[str, Field(min_length=1, max_length=80)]
    target: str | None = None
    draft: str | None = None
    drafters: Annotated[
        tuple[Literal["model", "lookup", "both"], ...], BeforeValidator(_listed), AfterValidator(_once)
    ] = ("model",)
    dtype: str | None = None
    offload: Literal["disk", "host"] | None = None
    device: str | None = None
    tokenizer: str | None = None

    @property
    def spec(self) -> PairSpec:
        return PairSpec(self.target, self.draft, self.device, self.dtype, self.offload, self.tokenizer)


class PromptSection(_Section):
    """A file of prompts, all of one kind of text.

    Attributes:
        count: only the first so many; None for all.
        chat, template_arguments: as `Prompting` has them.
    """

    domain: Annotated[str, Field(min_length=1, max_length=40)]
    file: str
    column: str | None = None
    count: Annotated[int, Field(ge=1)] | None = None
    chat: bool | None = None
    template_arguments: dict[str, JsonValue] = {}


class PlanFile(_Section):
    """A plan as it is written; the trees of "lookup" and "both" are decoded at each `max_size`."""

    pairs: Annotated[list[PairSection], Field(min_length=1, max_length=MAX_TABLES)]
    prompts: Annotated[list[PromptSection], Field(min_length=1, max_length=MAX_TABLES)]
    temperatures: Annotated[list[float], Field(min_length=1)]
    top_p: Annotated[list[float], Field(min_length=1)] = [1.0]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    new_tokens: Annotated[int, Field(ge=1)] = 128
    width: Annotated[int, Field(ge=1)] = 16
    max_size: Annotated[
        tuple[Annotated[int, Field(ge=2, le=MAX_SIZE)], ...],
        BeforeValidator(_listed), AfterValidator(_once), Field(min_length=1),
    ] = (4, 8, 16)  # fmt: skip
    prompts_per_job: Annotated[int, Field(ge=1)] = 8
    threads: Annotated[int, Field(ge=1, le=MAX_THREADS)] = 1
    profile: bool = False
    race: bool = False


class Domain(NamedTuple):
    name: str
    texts: tuple[str, ...]
    prompting: Prompting = Prompting()


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked plan.

    Attributes:
        settings: as written, with paths resolved and the dtype that each pair loads in on this machine.
        domains: its prompts, read; the same text twice in one domain counts once.
    """

    settings: PlanFile
    domains: tuple[Domain, ...]
    pair_hashes: tuple[PairHashes, ...]

    @property
    def ways(self) -> list[tuple[float, float]]:
        """(temperature, top-p) of every setting; at temperature 0 top-p changes nothing and stands once."""
        ways = [
            (temperature, top_p if temperature else 1.0)
            for temperature in self.settings.temperatures
            for top_p in self.settings.top_p
        ]
        return list(dict.fromkeys(ways))


def read_plan(path: str | Path, *, elsewhere: bool = False) -> Plan:
    """Read a plan, and check everything that can be checked before a weight is read.

    Paths of models and prompts are relative to the plan's folder. Run `elsewhere`, it may need devices that this
    machine lacks.
    """
    text = read_bytes(path, limit=MAX_PLAN).decode("utf-8-sig", errors="replace")
    _check_text(path, text)
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: found no readable TOML ({error}), expected a plan") from error
    except RecursionError as error:
        raise ValueError(f"{path}: found lists or tables nested too deep, expected a plan") from error
    try:
        settings = PlanFile.model_validate(fields)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
        raise _mistakes(path, text, [(fault["loc"], fault_words(fault)) for fault in errors]) from error
    settings = _resolved(settings, Path(path).parent)
    plan, faults = _checked(settings, elsewhere)
    if faults:
        raise _mistakes(path, text, faults)
    return plan


def _check_text(path: str | Path, text: str) -> None:
    """Refuse what TOML's reader takes minutes for, or cannot name the line of."""
    lines = text.split("\n")
    if len(lines) > MAX_LINES:
        raise ValueError(f"{path}: found {len(lines):,} lines, expected at most {MAX_LINES:,}")
    for number, line in enumerate(lines, start=1):
        if (dots := line.count(".")) > MAX_DOTS:
            raise ValueError(f"{path}: line {number}: found {dots:,} dots, expected at most {MAX_DOTS}")
        if digits := re.search(r"[\da-fA-F_]{1000,}", line):
            raise ValueError(f"{path}: line {number}: found a number of {len(digits[0]):,} digits, expected fewer")


Fault = tuple[tuple[int | str, ...], str]


def _resolved(settings: PlanFile, folder: Path) -> PlanFile:
    """Return the plan with absolute paths."""

    def absolute(name: str | None) -> str | None:
        if name is None or name == NO_DRAFT:
            return name
        try:
            beside = folder / Path(name).expanduser()
            return str(beside.resolve()) if beside.exists() else name
        except (OSError, RuntimeError):  # a name too long for the system, or ~ of a user who has no home
            return name

    pairs = [
        pair.model_copy(update={key: absolute(getattr(pair, key)) for key in ("target", "draft", "tokenizer")})
        for pair in settings.pairs
    ]
    prompts = [part.model_copy(update={"file": absolute(part.file)}) for part in settings.prompts]
    return settings.model_copy(update={"pairs": pairs, "prompts": prompts})


def _checked(settings: PlanFile, elsewhere: bool) -> tuple[Plan, list[Fault]]:
    """Return the plan, and its mistakes with their keys."""
    both = any(BOTH in pair.drafters for pair in settings.pairs)
    faults: list[Fault] = []
    ways = [("temperatures", value, 1.0) for value in settings.temperatures]
    for key, temperature, top_p in ways + [("top_p", 1.0, value) for value in settings.top_p]:
        try:
            SamplingConfig(temperature, top_p)
        except ValueError as error:
            faults.append(((key,), str(error)))
    domains: dict[str, Domain] = {}
    for number, part in enumerate(settings.prompts):
        try:
            texts = load_prompts(part.file, part.column)[: part.count]
        except ValueError as error:
            faults.append((("prompts", number, "file"), str(error)))
            continue
        try:
            prompting = Prompting(part.chat, part.template_arguments)
        except ValueError as error:
            faults.append((("prompts", number, "template_arguments"), str(error)))
            continue
        if part.domain in domains:
            faults.append((("prompts", number, "domain"), f"found {part.domain!r} twice, expected each domain once"))
        domains[part.domain] = domain = Domain(part.domain, tuple(dict.fromkeys(texts)), prompting)
        if both and len(domain.texts) < 2:
            words = f"found one prompt in {part.domain!r}, expected at least two: both knows the draft from the others"
            faults.append((("prompts", number, "count"), words))
    names = [pair.name for pair in settings.pairs]
    pairs, hashes = [], []
    for number, pair in enumerate(settings.pairs):
        if names.index(pair.name) != number:
            faults.append((("pairs", number, "name"), f"found {pair.name!r} twice, expected each name once"))
        try:
            checked, hashed = _check_pair(pair, settings, domains.values(), elsewhere)
        except ValueError as error:
            faults.append((("pairs", number), str(error)))
            continue
        pairs.append(checked)
        hashes.append(hashed)
    count = len(domains) * len(settings.temperatures) * len(settings.top_p)
    count *= sum(len(sizes_of(kind, settings)) for pair in settings.pairs for kind in pair.drafters)
    if count > MAX_JOBS:
        faults.append((("temperatures",), f"found {count:,} settings, expected at most {MAX_JOBS:,}"))
    settings = settings.model_copy(update={"pairs": pairs})
    return Plan(settings, tuple(domains.values()), tuple(hashes)), faults


def sizes_of(kind: str, settings: PlanFile) -> tuple[int, ...]:
    """Return the sizes of trees of a kind of job; the largest for one that has no such trees."""
    return settings.max_size if kind in (LOOKUP, BOTH) else (max(settings.max_size),)


def _check_pair(
    pair: PairSection, settings: PlanFile, domains: Iterable[Domain], elsewhere: bool
) -> tuple[PairSection, PairHashes]:
    """Return a pair with the dtype that it loads in here, and its models' content hashes."""
    if not pair.drafters:
        raise ValueError("drafters: found none, expected some of model, lookup, both")
    if set(pair.drafters) == {LOOKUP} and not (settings.profile or settings.race):
        pair = pair.model_copy(update={"draft": NO_DRAFT})
    alone = pair.draft == NO_DRAFT
    if alone and (set(pair.drafters) != {LOOKUP} or settings.race):
        raise ValueError('draft: found none, expected a draft model, or drafters = ["lookup"] without a race')
    facts = pair_facts(_spec_of_elsewhere(pair.spec) if elsewhere else pair.spec)
    if not alone and settings.width > facts.vocab_size:
        raise ValueError(f"width: found {settings.width}, expected at most the vocabulary of {facts.vocab_size}")
    depth = RACE_DEPTH if settings.race else TREE_DEPTH if {LOOKUP, BOTH} & set(pair.drafters) else 0
    context = min(facts.contexts)
    whose = ("target", "draft")[facts.contexts.index(context)]
    needed = max(settings.new_tokens, depth + 1)
    words = f"new_tokens {needed}" if needed == settings.new_tokens else f"{needed} levels of trees"
    for domain in domains:
        for text in domain.texts:
            length = len(encode_prompt(facts, text, domain.prompting))
            if not 1 <= length <= context - needed:
                raise ValueError(
                    f"{domain.name} prompt {text[:40]!r}: found {length} tokens, expected 1 to "
                    f"{context - needed} (the {whose}'s context of {context} less {words})"
                )
    hashes = pair_hashes(pair.target, pair.draft, pair.tokenizer)
    return pair.model_copy(update={"dtype": facts.dtype}), hashes


def _spec_of_elsewhere(spec: PairSpec) -> PairSpec:
    """Return what to look at of a pair whose device may not be here."""
    dtype = spec.dtype
    if dtype is None and spec.device not in (None, "cpu") and not is_gguf(spec.target or ""):
        dtype = default_dtype(spec.target, gpu=True).dtype
    return replace(spec, device=None, offload=spec.offload and "disk", dtype=dtype)


def _mistakes(path: str | Path, text: str, faults: Sequence[Fault]) -> ValueError:
    mistakes = sorted((_line_of(text, keys), words) for keys, words in faults[:MAX_FAULTS])
    shown = "; ".join(f"line {line}: {words}" for line, words in mistakes[:SHOWN_FAULTS])
    more = f"; and {len(faults) - SHOWN_FAULTS} more" if len(faults) > SHOWN_FAULTS else ""
    return ValueError(f"{path}: {shown}{more}")


def _line_of(text: str, keys: Sequence[int | str]) -> int:
    """Return the line of a key of a plan, of its table's head where the key is not there, or else the first."""
    names = [part for part in keys if isinstance(part, str)]
    number = next((part for part in keys if isinstance(part, int)), 0)
    tables = [name for name in names if name in ("pairs", "prompts")]
    inside, seen, head = None, -1, 1
    for line, words in enumerate(text.splitlines(), start=1):
        if section := re.match(r"\s*\[\[\s*(\w+)\s*\]\]", words):
            inside = section[1]
            seen += inside == tables[0] if tables else 0
            if tables and inside == tables[0] and seen == number:
                head = line
            continue
        here = inside == tables[0] and seen == number if tables else inside is None
        key = names[-1] if names else ""
        if here and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", words):
            return line
    return head
