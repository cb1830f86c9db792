"""Whether rounding alone may exchange two tokens at temperature 0, by the gap of their logits."""

# Passes of other widths move a logit by up to 1e-5 of the spread of its row in float32, by 0.01 in fewer digits;
# bfloat16 itself has steps of 0.125 from 16 on.
NEAR_TIE, NEAR_TIE_ROUNDED = 1e-3, 0.25


def is_near_tie(gap: float, *, exact: bool) -> bool:
    """Return whether a gap is within rounding; `exact`: the target computes in float32 with unquantised weights."""
    return abs(gap) <= (NEAR_TIE if exact else NEAR_TIE_ROUNDED)


def gap_words(gap: float, *, exact: bool) -> str:
    """Say how far two logits are apart and what follows."""
    near = "a near tie, which rounding decides" if is_near_tie(gap, exact=exact) else "no near tie: not rounding alone"
    return f"their logits differ by {abs(gap):.2g}, {near}"
