"""How figures are written, everywhere alike: intervals, counts of things, shapes of trees. No streamlit import."""

ONE_PROMPT = "one prompt: no interval"


def between(low: float, high: float, form: str = "{:.2f}", unit: str = "") -> str:
    """Write two bounds, 1.94 to 2.96×, or one where both read alike; `form` is of a bound, `unit` follows the upper."""
    written = dict.fromkeys((form.format(low), form.format(high)))
    return " to ".join(written) + unit


def interval(
    low: float | None, high: float | None, form: str = "{:.2f}", unit: str = "", *, none: str = "no interval"
) -> str:
    """Write a 95% interval on a line of its own, 95%: 1.94 to 2.96×, or `none` where it is not known."""
    return none if low is None or high is None else f"95%: {between(low, high, form, unit)}"


def beside(low: float | None, high: float | None, form: str = "{:.2f}", unit: str = "") -> str:
    """Write bounds right after their value, (1.94 to 2.96×) with a space before; nothing where they are not known."""
    return "" if low is None or high is None else f" ({between(low, high, form, unit)})"


def count(number: int, thing: str, things: str | None = None) -> str:
    """Write how many there are of a thing: 1 step, 1,024 steps; `things` is an irregular plural."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def shape(size: int, depth: int) -> str:
    """Write the size and the depth of a tree."""
    return f"n = {size:,}, d = {depth}"
