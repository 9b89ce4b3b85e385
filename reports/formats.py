"""Numbers as text, with units: three digits in tables and tooltips, as few as possible on an axis."""

from collections.abc import Callable

Number = Callable[[float], str]


def digits(value: float) -> str:
    """Three significant digits: 0.0123, 1.20, 12.0, 1234."""
    if value == 0:
        return "0"
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def short(value: float) -> str:
    return f"{value:g}"


def length(value: float) -> str:
    """128, 1k, 8k."""
    return f"{value / 1024:.0f}k" if value >= 1024 and value % 1024 == 0 else f"{value:.0f}"


def seconds(value: float, number: Number = digits) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale * 0.9995:
            return f"{number(value / scale)} {unit}"
    return f"{number(value / 1e-9)} ns"


def size(value: float, number: Number = digits) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= scale:
            return f"{number(value / scale)} {unit}"
    return f"{value:.0f} B"


def ratio(value: float, number: Number = digits) -> str:
    return f"{number(value)}×"


def change(verdict: str, value: float) -> str:
    """1.20× slower; nothing where there is no verdict."""
    return f"{ratio(value if verdict == 'slower' else 1 / value)} {verdict}" if verdict else ""


def span(text: Callable[[float], str], low: float, high: float) -> str:
    """15.8 to 17.0 ms: the unit once where both ends share it."""
    first, last = text(low), text(high)
    number, _, unit = first.partition(" ")
    return f"{number if unit and last.endswith(f' {unit}') else first} to {last}"


def plain(value: float, number: Number = digits) -> str:
    return number(value)


def commit(value: str | None) -> str:
    return value[:8] if value else "an unknown commit"
