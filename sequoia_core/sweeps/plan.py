"""What a sweep measures: the plan that a person writes as TOML, checked whole before anything runs."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
)

from ..decoding.sampling import SamplingConfig
from ..design.tree import MAX_SIZE
from ..files.file_kinds import decode_text
from ..files.gguf_header import is_gguf
from ..files.json_models import fault_words
from ..files.model_names import MTP, NO_DRAFT
from ..files.prompt_files import load_prompts
from ..files.prompt_rows import Prompt, shown
from ..files.safe_files import read_bytes
from ..models.default_dtype import default_dtype
from ..models.loading import pair_facts
from ..models.pair_spec import PairSpec
from ..models.prompting import Prompting, encode_prompt
from .content import PairHashes, pair_hashes

MODEL, LOOKUP, BOTH = DRAFTERS = ("model", "lookup", "both")
MAX_JOBS = 100_000  # before they are split into parts
MAX_THREADS = 1024
MAX_PLAN, MAX_TABLES = 256 * 2**10, 200  # bytes, and tables of a kind
MAX_DOTS = 200  # of a line: TOML's reader takes minutes for a key of 50,000 parts
MAX_SHOWN = 12  # mistakes named at once
TREE_DEPTH, RACE_DEPTH = 16, 32  # edges of a path at most: of the trees of "lookup" and "both", of those that are raced


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _once(values: tuple) -> tuple:
    return tuple(dict.fromkeys(values))


def _beside_the_plan(name: str, info: ValidationInfo) -> str:
    """Return a name relative to the plan's folder as a whole path; one that is no path stays as it is."""
    if not info.context or name in (NO_DRAFT, MTP):
        return name
    try:
        path = info.context["folder"] / Path(name).expanduser()
        return str(path.resolve()) if path.exists() else name
    except (OSError, RuntimeError):  # a name too long for the system, or ~ of a user who has no home
        return name


def _unique(key: str) -> AfterValidator:
    def check(sections: list) -> list:
        names = [getattr(section, key) for section in sections]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"found the {key} {name!r} twice, expected each once")
        return sections

    return AfterValidator(check)


Temperature = Annotated[float, AfterValidator(lambda value: SamplingConfig(value).temperature)]
TopP = Annotated[float, AfterValidator(lambda value: SamplingConfig(1.0, value).top_p)]
File = Annotated[str, AfterValidator(_beside_the_plan)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PairSection(_Section):
    """A pair of a plan, with how it is loaded and who drafts."""

    name: Annotated[str, Field(min_length=1, max_length=80)]
    target: File | None = None
    draft: File | None = None
    drafters: Annotated[
        tuple[Literal["model", "lookup", "both"], ...],
        BeforeValidator(_listed), AfterValidator(_once), Field(min_length=1),
    ] = ("model",)  # fmt: skip
    dtype: str | None = None
    offload: Literal["disk", "host"] | None = None
    device: str | None = None
    tokenizer: File | None = None

    @property
    def spec(self) -> PairSpec:
        return PairSpec(self.target, self.draft, self.device, self.dtype, self.offload, self.tokenizer)


class PromptSection(_Section):
    """A file of prompts, all of one kind of text; `count` of None takes them all."""

    domain: Annotated[str, Field(min_length=1, max_length=40)]
    file: File
    column: str | None = None
    count: Annotated[int, Field(ge=1)] | None = None
    chat: bool | None = None
    template_arguments: dict[str, JsonValue] = {}

    def read(self) -> Domain:
        """Return the prompts, the same text once."""
        texts = load_prompts(self.file, self.column, self.count)
        return Domain(self.domain, _once(tuple(texts)), Prompting(self.chat, self.template_arguments))


class PlanFile(_Section):
    """A plan as it is written; the trees of "lookup" and "both" are decoded at each `max_size`."""

    pairs: Annotated[list[PairSection], Field(min_length=1, max_length=MAX_TABLES), _unique("name")]
    prompts: Annotated[list[PromptSection], Field(min_length=1, max_length=MAX_TABLES), _unique("domain")]
    temperatures: Annotated[list[Temperature], Field(min_length=1)]
    top_p: Annotated[list[TopP], Field(min_length=1)] = [1.0]
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

    def sizes_of(self, kind: str) -> tuple[int, ...]:
        """Return the sizes of trees of a kind of job; the largest for one that has no such trees."""
        return self.max_size if kind in (LOOKUP, BOTH) else (max(self.max_size),)

    @property
    def ways(self) -> list[tuple[float, float]]:
        """(temperature, top-p) of every setting; at temperature 0 top-p changes nothing and stands once."""
        return list(dict.fromkeys((t, top_p if t else 1.0) for t in self.temperatures for top_p in self.top_p))


class Domain(NamedTuple):
    name: str
    texts: tuple[Prompt, ...]
    prompting: Prompting = Prompting()


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked plan: with whole paths, the dtype that each pair loads in on this machine, and the prompts read."""

    settings: PlanFile
    domains: tuple[Domain, ...]
    pair_hashes: tuple[PairHashes, ...]


def read_plan(path: str | Path, *, elsewhere: bool = False) -> Plan:
    """Read a plan, and check everything that can be checked before a weight is read.

    Paths of models and prompts are relative to the plan's folder. Run `elsewhere`, it may need devices that this
    machine lacks.
    """
    data = read_bytes(path, limit=MAX_PLAN)
    try:
        return _checked(_parsed(decode_text(data, "a plan"), Path(path).parent), elsewhere)
    except RecursionError as error:
        raise ValueError(f"{path}: found lists or tables nested too deep, expected a plan") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _parsed(text: str, folder: Path) -> PlanFile:
    for number, line in enumerate(text.split("\n"), start=1):
        if (dots := line.count(".")) > MAX_DOTS:
            raise ValueError(f"line {number}: found {dots:,} dots, expected at most {MAX_DOTS}")
    try:
        return PlanFile.model_validate(tomllib.loads(text), context={"folder": folder})
    except ValidationError as error:
        raise _mistakes(map(_words, error.errors(include_url=False, include_context=False))) from error
    except ValueError as error:  # of TOML's reader; also a number of too many digits
        raise ValueError(f"found no readable TOML ({error}), expected a plan") from error


def _words(fault: Mapping[str, Any]) -> str:
    if fault["type"] != "value_error":
        return fault_words(fault)
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].removeprefix('Value error, ')}"


def _mistakes(words: Iterable[str]) -> ValueError:
    shown = list(words)
    more = [f"and {len(shown) - MAX_SHOWN} more"] if len(shown) > MAX_SHOWN else []
    return ValueError("; ".join([*shown[:MAX_SHOWN], *more]))


def _checked(settings: PlanFile, elsewhere: bool) -> Plan:
    """Read the prompts and look at the models of a plan; its mistakes are named all at once."""
    faults: list[str] = []

    def collected(place: str, make: Callable[[], Any]) -> list:
        try:
            return [make()]
        except ValueError as error:
            faults.append(f"{place}: {error}")
            return []

    domains: list[Domain] = []
    for number, part in enumerate(settings.prompts):
        domains += collected(f"prompts.{number}", part.read)
    pairs: list[tuple[PairSection, PairHashes]] = []
    for number, pair in enumerate(settings.pairs):
        check = partial(_check_pair, pair, settings, domains, elsewhere)
        pairs += collected(f"pairs.{number}", check)
    count = len(settings.prompts) * len(settings.temperatures) * len(settings.top_p)
    count *= sum(len(settings.sizes_of(kind)) for pair in settings.pairs for kind in pair.drafters)
    if count > MAX_JOBS:
        faults.append(f"temperatures: found {count:,} settings, expected at most {MAX_JOBS:,}")
    if faults:
        raise _mistakes(faults)
    checked = settings.model_copy(update={"pairs": [pair for pair, _ in pairs]})
    return Plan(checked, tuple(domains), tuple(hashes for _, hashes in pairs))


def _check_pair(
    pair: PairSection, settings: PlanFile, domains: Sequence[Domain], elsewhere: bool
) -> tuple[PairSection, PairHashes]:
    """Return a pair with the dtype that it loads in here, and its models' content hashes."""
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
        if BOTH in pair.drafters and len(domain.texts) < 2:
            raise ValueError(
                f"found one prompt in {domain.name!r}, expected at least two: both knows the draft from the others"
            )
        for text in domain.texts:
            length = len(encode_prompt(facts, text, domain.prompting))
            if not 1 <= length <= context - needed:
                raise ValueError(
                    f"{domain.name} prompt {shown(text)[:40]!r}: found {length} tokens, expected 1 to "
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
