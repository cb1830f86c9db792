"""Run a job in a worker process: load the pair, measure prompt by prompt, and return rows."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sequoia_core.files.faults import is_out_of_memory, is_panic
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.files.prompt_rows import Prompt, display_prompt
from sequoia_core.models.prompting import encode_prompt

from .content import PairHashes, locate_files, pair_hashes
from .jobs import CALIBRATION_PROMPTS, PROFILE, RACE, SweepJob, digest, measurement_version
from .plan import BOTH, LOOKUP, MODEL, TREE_DEPTH

if TYPE_CHECKING:
    from sequoia_core.acceptance.vector import AcceptanceVector
    from sequoia_core.decoding.sampling import SamplingConfig
    from sequoia_core.models.language_model import ModelPair

# Models and PyTorch's thread count are shared by the process, and a Dask worker may have several threads.
_job_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class JobResult:
    """A job's rows, its worker ("host:pid") and its duration; a failed prompt has a row with its fault."""

    rows: list[dict[str, Any]]
    worker: str
    seconds: float

    @property
    def faults(self) -> dict[str, str]:
        """Row key -> reason why a prompt could not be measured."""
        return {row["key"]: row["fault"] for row in self.rows if "fault" in row}


def run_job(job: SweepJob) -> JobResult:
    """Run a job in this process; faults of the pair and the prompts become part of the result."""
    with _job_lock:
        started = time.perf_counter()
        worker = f"{socket.gethostname()}:{os.getpid()}"
        try:
            rows = [row | {"worker": worker} for row in _measure_rows(job)]
        except BaseException as error:  # raised if the pair cannot be loaded
            rows = [job.failed_row(key, _fault_message(error)) for key in job.keys]
        return JobResult(rows, worker, time.perf_counter() - started)


def _measure_rows(job: SweepJob) -> Iterator[dict[str, Any]]:
    version = measurement_version(job.kind, job.common["temperature"], job.common["top_p"])
    if job.common["version"] != version:
        raise ValueError(
            f"found measurement version {version} on this worker, expected {job.common['version']}: install the same "
            "version everywhere"
        )
    loaded = _load(job)
    prompted = job.prompting.record(loaded.pair.tokenizer)
    prompted["template_arguments"] = json.dumps(prompted["template_arguments"], sort_keys=True)
    measure = {MODEL: _acceptance, LOOKUP: _decode, BOTH: _decode, PROFILE: _profile, RACE: _race}[job.kind]
    for key, text in zip(job.keys, job.prompts, strict=not job.timed):
        started = time.perf_counter()
        prompt = {} if job.timed else {"prompt": display_prompt(text)[:200], "prompt_hash": digest(text)}
        try:
            columns = measure(job, loaded, text)
        except BaseException as error:
            yield job.failed_row(key, _fault_message(error)) | prompt
            continue
        if job.kind != PROFILE:
            prompt |= prompted
        row = job.common | prompt | columns | _dtype_columns(loaded.pair)
        yield row | {"key": key, "seconds": time.perf_counter() - started}


def _fault_message(error: BaseException) -> str:
    """Return the fault to record; re-raise errors that end a program, such as KeyboardInterrupt."""
    if not (isinstance(error, Exception) or is_panic(error)):
        raise error
    message = "out of memory" if is_out_of_memory(error) else str(error) or type(error).__name__
    return message.encode(errors="replace").decode()


@dataclass(slots=True)
class _LoadedPair:
    """The pair in memory, and the vectors measured with it, by prompt and setting."""

    pair: ModelPair
    vectors: dict[tuple, AcceptanceVector] = field(default_factory=dict)


# Contains at most one pair; the key consists of its loading options and content hashes.
_loaded_pair: dict[tuple, _LoadedPair] = {}


def _load(job: SweepJob) -> _LoadedPair:
    """Return a job's pair; close the previous job's pair if it is a different one."""
    import torch
    from transformers.utils import logging

    from sequoia_core.models.loading import load

    hashes = tuple(job.common[f"{part}_hash"] for part in PairHashes._fields)
    key = (job.pair, job.common["threads"], *hashes)
    if key in _loaded_pair:
        return _loaded_pair[key]
    while _loaded_pair:
        _close(_loaded_pair.popitem()[1].pair)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(job.common["threads"])
    pair = load(job.pair.spec)
    names = {"target": job.pair.target, "draft": job.pair.draft, "tokenizer": job.pair.tokenizer}
    for (part, name), found, expected in zip(names.items(), pair_hashes(**names), hashes, strict=True):
        if (found or "") != expected:
            _close(pair)
            files = locate_files(str(DEMO_PAIR / part) if name is None else name)
            raise ValueError(
                f"{part}: found files at {files} that differ from the plan's, expected the same models everywhere"
            )
    _loaded_pair[key] = _LoadedPair(pair)
    return _loaded_pair[key]


def _close(pair: ModelPair) -> None:
    for model in pair.models:
        model.close()


def _dtype_columns(pair: ModelPair) -> dict[str, str]:
    from sequoia_core.models.protocol import dtype_name

    return {"dtype_used": dtype_name(pair.target), "passes_by": pair.target.backend}


def _seed(job: SweepJob, text: Prompt) -> int:
    return int(digest([job.common["seed"], text])[:12], 16)


def _sampling(job: SweepJob) -> SamplingConfig:
    from sequoia_core.decoding.sampling import SamplingConfig

    return SamplingConfig(job.common["temperature"], job.common["top_p"])


def _measure_vector(pair: ModelPair, text: Prompt, job: SweepJob) -> AcceptanceVector:
    from sequoia_core.measuring.measure_acceptance import measure_acceptance

    return measure_acceptance(
        [encode_prompt(pair, text, job.prompting)],
        pair,
        sampling=_sampling(job),
        width=job.common["width"],
        max_new_tokens=job.common["new_tokens"],
        seed=_seed(job, text),
    )


def _acceptance(job: SweepJob, loaded: _LoadedPair, text: Prompt) -> dict[str, Any]:
    vector = _measure_vector(loaded.pair, text, job)
    counted = vector if vector.by_depth is None else vector.by_depth  # a draft head has one row per depth
    assert vector.calibration is not None and counted.prompt_sums is not None and counted.prompt_ranks is not None
    return {
        "positions": int(vector.trials or 0),
        "sums": counted.prompt_sums[0].ravel().tolist(),
        "ranks": counted.prompt_ranks[0].ravel().tolist(),
        "calibration": json.dumps(vector.calibration.to_json()),
    }


def _calibrated_vector(job: SweepJob, loaded: _LoadedPair, text: Prompt) -> AcceptanceVector:
    """Return a vector calibrated on the domain's first prompts except this one; each is measured only once."""
    from sequoia_core.acceptance.calibration import Calibration

    others = [other for other in job.calibrating if other != text][:CALIBRATION_PROMPTS]
    assert others, "a plan with 'both' has at least two prompts per domain"
    setting = (job.prompting, *(job.common[key] for key in ("temperature", "top_p", "new_tokens", "width", "seed")))
    for other in others:
        if (other, *setting) not in loaded.vectors:
            loaded.vectors[other, *setting] = _measure_vector(loaded.pair, other, job)
    vectors = [loaded.vectors[other, *setting] for other in others]
    joined = Calibration.joined([vector.calibration for vector in vectors if vector.calibration is not None])
    return replace(vectors[0], calibration=joined)


def _decode(job: SweepJob, loaded: _LoadedPair, text: Prompt) -> dict[str, Any]:
    """Decode with lookup or hybrid trees; return the number of tokens and the tree of each step in numbers."""
    from sequoia_core.decoding.tree_kinds import TREE_KINDS
    from sequoia_core.measuring.race import tree_method

    both = job.kind == BOTH
    vector = _calibrated_vector(job, loaded, text) if both else None
    kind = TREE_KINDS["hybrid" if both else "lookup"]
    tree = kind.make(vector, max_size=job.common["max_size"], max_depth=TREE_DEPTH)
    decode = tree_method(loaded.pair, tree, _sampling(job), seed=_seed(job, text))
    ids = encode_prompt(loaded.pair, text, job.prompting)
    decoded = decode(ids, job.common["new_tokens"], 0, lambda share: None)
    assert decoded is not None, "the decode is never cancelled"
    return {
        "tokens": len(decoded.output),
        "steps": decoded.passes,
        "nodes": [step.tree.size for step in decoded.steps],
        "draft_widths": [list(step.draft_widths) for step in decoded.steps],
    }


def _profile(job: SweepJob, loaded: _LoadedPair, text: Prompt) -> dict[str, Any]:
    from sequoia_core.measuring.measure_profile import measure_profile

    return {"result": json.dumps(measure_profile(loaded.pair).to_json())}


def _race(job: SweepJob, loaded: _LoadedPair, text: Prompt) -> dict[str, Any]:
    from sequoia_core.measuring.bench import bench

    ids = [encode_prompt(loaded.pair, each, job.prompting) for each in job.prompts]
    result = bench(loaded.pair, ids, sampling=_sampling(job), max_new_tokens=job.common["new_tokens"])
    return {"result": json.dumps(result.record)}
