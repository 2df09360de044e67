"""Numbers and lists of a profile in words for people."""

from __future__ import annotations


def time_words(nanoseconds: float | None) -> str:
    """ "8.3 µs", "412 µs", "5.49 ms", "1.20 s"; "-" for None."""
    if nanoseconds is None:
        return "-"
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if nanoseconds >= size * 0.9995:
            value = nanoseconds / size
            if unit == "µs" and value >= 9.995:
                return f"{value:.0f} µs" if value >= 99.95 else f"{value:.1f} µs"
            return f"{value:.2f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    return f"{nanoseconds:.0f} ns" if nanoseconds else "0"


def percent_words(share: float) -> str:
    """ "58 %", "3.1 %", "< 0.1 %", "0 %"."""
    value = 100 * share
    if 0 < value < 0.05:
        return "< 0.1 %"
    return f"{value:.1f} %" if 0 < value < 9.95 else f"{value:.0f} %"


def number_words(value: float) -> str:
    """ "1,240", "0.5": counts per step, which need not be whole."""
    return f"{value:,.0f}" if abs(value - round(value)) < 0.05 else f"{value:,.1f}"


def plural(count: float, one: str, many: str = "") -> str:
    """ "1 operation", "1,240 operations"."""
    return f"{number_words(count)} {one if abs(count - 1) < 0.05 else many or one + 's'}"


def size_words(size: float | None) -> str:
    """Bytes: "512 B", "1.4 MB"; "-" for None."""
    if size is None:
        return "-"
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def times_words(before: float, after: float) -> str:
    """ "6.8 times as fast", "1.3 times as slow", "as fast as before"."""
    if not before or not after:
        return "not comparable"
    ratio = before / after
    if 0.97 < ratio < 1.03:
        return "as fast as before"
    return f"{_ratio(ratio)} times as fast" if ratio > 1 else f"{_ratio(1 / ratio)} times as slow"


def _ratio(value: float) -> str:
    return f"{value:.1f}" if value >= 1.95 else f"{value:.2f}"


def list_words(words: list[str]) -> str:
    """ "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1] if words else ""]))
