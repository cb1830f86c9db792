"""Our own engine's answers as a server's, so that a plan can be held against both."""

from sequoia_core.servers.check import Served
from sequoia_core.servers.counts import ServerCounts, ServerRequest
from sequoia_core.studies.race import PHASES, Decoded


def served_by_us(decoded: Decoded, k: int) -> Served:
    """Return our own engine's decode with a chain of k as a server's answer, which counts nothing past its end."""
    accepted = tuple(len(step.accepted_path) - 1 for step in decoded.steps)
    seconds = sum(getattr(step, phase) for step in decoded.steps for phase in PHASES)
    tokens = len(decoded.output)
    if not k:
        return Served(tokens, seconds, decoded.output)
    drafted = (k,) * len(accepted)
    counts = ServerCounts(
        "sequoia", "records by step", len(accepted), sum(drafted), sum(accepted),
        tuple(sum(taken >= position for taken in accepted) for position in range(1, k + 1)),
        requests=(ServerRequest(accepted, drafted, tokens),), ordered=True,
    )  # fmt: skip
    return Served(tokens, seconds, decoded.output, counts)
