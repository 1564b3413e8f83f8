"""Durations in words."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """12 s, 3:20 min, 1:05 h."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}:{seconds:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"
