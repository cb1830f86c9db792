"""The jobs of a sweep and the keys of their rows, which depend only on the pair, the settings and the prompt."""

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from sequoia_core.files.model_names import NO_DRAFT
from sequoia_core.files.prompt_rows import Prompt
from sequoia_core.models.model_sources import claim
from sequoia_core.models.prompting import Prompting

from .content import PairHashes
from .plan import BOTH, LOOKUP, MODEL, Domain, PairSection, SweepPlan
from .results import cuts_first

PROFILE, RACE = TIMED = ("profile", "race")  # kinds of jobs that need a machine to themselves
MEASURE_VERSION = 1  # increased whenever a row with the same key would have different numbers
CALIBRATION_PROMPTS = 4  # number of a domain's prompts that calibrate "both"; excludes the one being decoded
LABEL_COLUMNS = ("pair", "target", "draft", "tokenizer_hash")  # columns that are not part of a key
# Columns that do not affect the rows of a kind and are therefore not part of their keys.
UNUSED_COLUMNS = {
    MODEL: ("max_size",),
    LOOKUP: ("width",),
    BOTH: (),
    PROFILE: ("width", "max_size", "seed", "new_tokens"),
    RACE: ("width", "max_size", "seed"),
}


@dataclass(frozen=True, slots=True)
class SweepJob:
    """A unit of work for one worker: whole prompts at one setting.

    Attributes:
        kind: one of `DRAFTERS`, "profile" or "race".
        pair: pair to load; a "lookup" job's pair has no draft.
        keys: row keys, one per prompt; a timed job has a single row.
        common: columns shared by all of the job's rows.
        calibrating: the domain's first prompts, one more than needed.
    """

    kind: str
    pair: PairSection
    keys: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    common: dict[str, Any] = field(hash=False)
    prompting: Prompting = Prompting()
    calibrating: tuple[Prompt, ...] = ()

    @property
    def timed(self) -> bool:
        return self.kind in TIMED

    @property
    def description(self) -> str:
        parts = [self.pair.name, self.kind]
        if self.kind != PROFILE:
            parts += [self.common["domain"], f"T = {self.common['temperature']:g}", f"top-p {self.common['top_p']:g}"]
        if self.kind in (LOOKUP, BOTH):
            parts.append(f"{self.common['max_size']} nodes")
        return ", ".join(parts)

    def failed_row(self, key: str, fault: str) -> dict[str, Any]:
        """Return the row of a prompt that could not be measured."""
        return self.common | {"key": key, "fault": fault}


def all_jobs(plan: SweepPlan, existing: Collection[str] = ()) -> Iterator[SweepJob]:
    """Yield the jobs whose rows do not exist yet; a row shared by two pairs is measured once.

    Jobs are ordered by pair, and timed jobs come last. Lookup loads the target alone and comes first, so that the whole
    pair is loaded only once.
    """
    seen = set(existing)
    settings = plan.settings
    pairs = list(zip(settings.pairs, plan.pair_hashes, strict=True))
    for pair, hashes in pairs:
        drafters = sorted(pair.drafters, key=lambda kind: kind != LOOKUP)
        sized = [(kind, size) for kind in drafters for size in settings.tree_sizes(kind)]
        for (kind, size), domain, sampling in product(sized, plan.domains, settings.samplings):
            job = _make_job(plan, kind, pair, hashes, sampling, domain, size)
            new = [(key, text) for key, text in zip(job.keys, job.prompts, strict=True) if key not in seen]
            for start in range(0, len(new), settings.prompts_per_job):
                keys, texts = zip(*new[start : start + settings.prompts_per_job], strict=True)
                yield replace(job, keys=keys, prompts=texts)
            seen.update(job.keys)
    (largest,) = settings.tree_sizes(PROFILE)
    for pair, hashes in pairs:
        timed = []
        if settings.profile:
            timed.append(_make_job(plan, PROFILE, pair, hashes, (0.0, 1.0), Domain("", ("",)), largest))
        if settings.race:
            for domain, sampling in product(plan.domains, settings.samplings):
                timed.append(_make_job(plan, RACE, pair, hashes, sampling, domain, largest))
        yield from (job for job in timed if job.keys[0] not in seen)
        seen.update(job.keys[0] for job in timed)


def _make_job(
    plan: SweepPlan,
    kind: str,
    pair: PairSection,
    hashes: PairHashes,
    sampling: tuple[float, float],
    domain: Domain,
    size: int,
) -> SweepJob:
    settings = plan.settings
    without_draft = kind == LOOKUP
    target, draft = (replace(pair.spec, draft=NO_DRAFT) if without_draft else pair.spec).names
    temperature, top_p = sampling
    common = {
        "kind": kind,
        "pair": pair.name,
        "target": target,
        "draft": draft,
        "target_hash": hashes.target,
        "draft_hash": "" if without_draft else hashes.draft,
        "tokenizer_hash": hashes.tokenizer or "",
        "dtype": pair.dtype or "",
        "offload": pair.offload or "",
        "device": pair.device or "",
        "temperature": temperature,
        "top_p": top_p,
        "domain": domain.name,
        "seed": settings.seed,
        "new_tokens": settings.new_tokens,
        "width": settings.width,
        "max_size": size,
        "threads": settings.threads,
        "version": measurement_version(kind, temperature, top_p),
    }
    calibrating = domain.texts[: CALIBRATION_PROMPTS + 1] if kind == BOTH else ()
    identity = {name: value for name, value in common.items() if name not in (*LABEL_COLUMNS, *UNUSED_COLUMNS[kind])}
    identity |= {
        "chat": domain.prompting.chat,
        "tokenizer": hashes.tokenizer,
        "calibrating": [digest(text) for text in calibrating],
    }
    if domain.prompting.arguments:
        identity["template_arguments"] = sorted(domain.prompting.arguments.items())
    if without_draft:
        # A GGUF file determines its own dtype.
        fixed = {"dtype": None} if claim(pair.spec.sources[0]) is not None else {}
        pair = pair.model_copy(update={"draft": NO_DRAFT} | fixed)
    texts = [digest(text) for text in domain.texts]
    keys = (digest([identity, texts]),) if kind in TIMED else tuple(digest([identity, text]) for text in texts)
    return SweepJob(kind, pair, keys, domain.texts, common, domain.prompting, calibrating)


def measurement_version(kind: str, temperature: float, top_p: float) -> int:
    """Return a measurement's version, one higher if top-p truncates the rows that first children are drawn from."""
    return MEASURE_VERSION + cuts_first(kind, temperature, top_p)


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]
