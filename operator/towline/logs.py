"""JSON log lines on stderr: one event a line, one verb in the past tense, fields instead of formatting.

Every process calls `configure` once, in its main; everything else uses `logging.getLogger(__name__)` and
`log.info("call settled", extra={"fields": {...}})`. It does not rotate, ship or filter.
"""

import json
import logging
import sys
from collections.abc import Mapping
from typing import Any

from towline.clock import rfc3339, utc_now


class JsonFormatter(logging.Formatter):
    """One line per record; `bound` fields (run, role) come on every line, `extra={"fields": …}` after them."""

    def __init__(self, bound: Mapping[str, Any]) -> None:
        super().__init__()
        self._bound = dict(bound)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": rfc3339(utc_now()),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line.update(self._bound)
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure(level: str, **bound: Any) -> None:
    """Send every log record of this process to stderr as JSON, with the `bound` fields on each line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(bound))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
