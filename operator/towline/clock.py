"""The clock at the edge of a process: the only place that reads wall time.

Deciding code takes `now`; only mains and I/O shells call this.
"""

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Now, timezone-aware, UTC."""
    return datetime.now(UTC)  # noqa: TID251 - this is the one clock


def rfc3339(at: datetime) -> str:
    """`2026-11-29T17:18:27.123Z`: UTC, milliseconds; sorts as text."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


def moment(text: str | None) -> datetime | None:
    """A time as the API server or an event has it; None for none."""
    return datetime.fromisoformat(text).astimezone(UTC) if text else None
