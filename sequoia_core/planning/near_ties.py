"""Near-ties: whether rounding alone could swap two tokens at temperature 0, judged by the gap between their logits."""

# Passes of different widths change a logit by up to 1e-5 of its row's range in float32, and by up to 0.01 of it in
# lower precision; bfloat16 values above 16 are at least 0.125 apart.
NEAR_TIE = 1e-3
NEAR_TIE_ROUNDED = 0.25


def is_near_tie(gap: float, *, exact: bool) -> bool:
    """Return whether rounding can explain a gap; `exact` means float32 and unquantized target weights."""
    return abs(gap) <= (NEAR_TIE if exact else NEAR_TIE_ROUNDED)


def describe_gap(gap: float, *, exact: bool) -> str:
    """Describe the gap between two logits, and whether rounding explains it."""
    near = is_near_tie(gap, exact=exact)
    verdict = "a near tie, which rounding decides" if near else "more than rounding alone explains"
    return f"their logits differ by {abs(gap):.2g}, {verdict}"
