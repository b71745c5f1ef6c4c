"""One streaming HTTP request to a model provider, bounded in time and bytes; the adapters give it meaning.

The key is read from its file for each request and leaves this file only inside a header: every text that comes back
is scrubbed of it before it becomes a fault.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import aiohttp

from towline.clock import utc_now
from towline.harness.models.base import (
    ModelAuthentication,
    ModelFault,
    ModelProtocolError,
    ModelRequestRejected,
    ModelUnavailable,
)
from towline.harness.models.sse import ServerSentEvent, SseParser, SseTooLarge

MAX_RESPONSE_BYTES = 64 << 20
MAX_EVENT_BYTES = 8 << 20
MAX_FAULT_BYTES = 64 << 10
MAX_MESSAGE_CHARACTERS = 500
CONNECT_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Key:
    """Where the API key is, and the header that carries it (`x-api-key: {}`, `authorization: Bearer {}`)."""

    file: Path | None
    header: str
    form: str = "{}"

    def read(self) -> str:
        """The key, empty when the provider needs none. Raises ModelAuthentication when it cannot be used."""
        if self.file is None:
            return ""
        try:
            key = self.file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as fault:
            raise ModelAuthentication(f"the model key file cannot be read: {type(fault).__name__}") from None
        if not key or any(not "!" <= character <= "~" for character in key):
            raise ModelAuthentication("the model key file is empty, or holds characters that no header can carry")
        return key


class Wire:
    """Requests to one endpoint of one provider."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: Key, *, timeout_seconds: float) -> None:
        self._session = session
        self._url = url
        self._key = key
        # aiohttp applies `total` to each read, so a deadline never cancels the consumer of the generator below.
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_SECONDS)

    async def events(
        self, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[ServerSentEvent, None]:
        """The server-sent events of the answer. Raises the ModelFault that the status or the failure means."""
        key = self._key.read()
        secret = {self._key.header: self._key.form.format(key)} if key else {}
        fixed = {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"}
        parser, received = SseParser(MAX_EVENT_BYTES), 0
        try:
            async with self._session.post(
                self._url,
                data=json.dumps(body, separators=(",", ":")).encode(),
                headers={**fixed, **headers, **secret},
                allow_redirects=False,
                timeout=self._timeout,
            ) as response:
                if response.status != 200:
                    raise await _refusal(response, key)
                async for chunk in response.content.iter_any():
                    received += len(chunk)
                    if received > MAX_RESPONSE_BYTES:
                        raise ModelProtocolError(f"the answer exceeds {MAX_RESPONSE_BYTES} bytes")
                    for event in parser.feed(chunk):
                        yield event
        except (SseTooLarge, UnicodeDecodeError) as fault:
            raise ModelProtocolError(f"malformed event stream: {type(fault).__name__}") from None
        except aiohttp.ConnectionTimeoutError:  # a TimeoutError as well
            raise ModelUnavailable(f"no connection within {self._timeout.sock_connect:g} s") from None
        except TimeoutError:
            raise ModelUnavailable(f"no complete answer within {self._timeout.total:g} s") from None
        except (aiohttp.ClientError, OSError) as fault:
            raise ModelUnavailable(f"{type(fault).__name__}: {_short(str(fault), key)}") from None

    def fault(self, kind: type[ModelFault], message: str) -> ModelFault:
        """A fault in the provider's own words, met inside a stream: scrubbed and shortened."""
        return kind(_short(message, self._key.read()))


async def _refusal(response: aiohttp.ClientResponse, key: str) -> ModelFault:
    """The fault that a status other than 200 means."""
    raw = await response.content.read(MAX_FAULT_BYTES)
    message = f"HTTP {response.status}: {_short(error_message(raw), key)}"
    if response.status in (401, 403):
        return ModelAuthentication(message)
    if response.status in (408, 409, 425, 429) or response.status >= 500:
        return ModelUnavailable(message, retry_after_seconds=_retry_after_seconds(response.headers))
    return ModelRequestRejected(message)


def error_message(raw: bytes | str) -> str:
    """The sentence meant for people in an error body: both providers wrap it as `{"error": {"message": …}}`."""
    try:
        value: Any = json.loads(raw)
        value = value.get("error", value)
        return str(value if isinstance(value, str) else value.get("message") or value.get("detail") or value)
    except (ValueError, AttributeError, RecursionError):
        return raw if isinstance(raw, str) else raw.decode(errors="replace")


def _retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Both of the header's forms, and the milliseconds that both providers add. None when absent or nonsense."""
    try:
        if _is_number(milliseconds := headers.get("retry-after-ms", "")):
            return float(milliseconds) / 1000
        if _is_number(text := headers.get("retry-after", "")):
            return float(text)
        return max(0.0, (parsedate_to_datetime(text) - utc_now()).total_seconds()) if text else None
    except (ValueError, TypeError, OverflowError):
        return None


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


def _short(text: str, key: str) -> str:
    """Scrubbed first, shortened after: a cut key would no longer match."""
    if key:
        text = text.replace(key, "[key]")
    text = " ".join(text.encode(errors="replace").decode().split())
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else text[: MAX_MESSAGE_CHARACTERS - 1] + "…"
