"""Our engine's answers in the form of a server's answers, so that a plan can be compared with both."""

from benchmarks.server_check import Served
from sequoia_core.measuring.race import PHASES, Decoded
from sequoia_extras.servers.counts import ServerCounts, ServerRequest


def served_by_us(decoded: Decoded, k: int) -> Served:
    """Return the result of decoding with a chain of k as a server's answer, without tokens past its end."""
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
