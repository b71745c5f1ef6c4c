"""The scripted model over HTTP, in both wire formats: a provider for tests and demos that can also misbehave.

`async with ScriptedServer(steps, faults) as server:` in tests, `python -m towline.testing.scripted_server FILE` by
hand. The n-th assistant message of a conversation is the n-th step, whatever the number of requests; it refuses what a
provider would refuse and keeps every request for assertions. Not for production.
"""

import argparse
import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from aiohttp import web

from towline.api.snapshot import ScriptedStep
from towline.harness.models.scripted import step_at
from towline.testing.provider_rules import anthropic_problems, openai_problems
from towline.testing.scripted_wire import (
    Answer,
    anthropic_events,
    anthropic_message,
    openai_chunks,
    openai_message,
    signature,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What one request gets instead of, or done to, its answer."""

    status: int = 0
    """Answer with this status and an error body in the provider's form."""
    message: str = "scripted fault"
    retry_after: str = ""
    """Retry-After header beside `status`."""
    malformed_json: bool = False
    """The first event of the stream holds broken JSON."""
    malformed_sse: bool = False
    """The stream is no UTF-8."""
    cut_after_bytes: int | None = None
    """The connection breaks after so many bytes of the stream."""
    hang: bool = False
    """Nothing follows the headers, until the client leaves."""
    empty: bool = False
    """A well-formed answer without text or tool call."""
    duplicate_call_ids: bool = False
    unknown_tool: bool = False
    bad_arguments: bool = False
    """Tool calls with arguments that end in the middle."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


class ScriptedServer:
    """Listens on a free port of 127.0.0.1. `faults` go by number of the request, the first is 0."""

    def __init__(
        self, script: Sequence[ScriptedStep], faults: Mapping[int, Fault] | None = None, *, key: str = "", port: int = 0
    ) -> None:
        self.requests: list[RecordedRequest] = []
        self.left_early = asyncio.Event()
        """A client closed its connection in the middle of an answer."""
        self._script = script
        self._faults = faults or {}
        self._key = key
        """When set, the only API key accepted; another one is quoted in the refusal, as providers do."""
        self._port = port
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/messages", self._messages)
        app.router.add_post("/v1/chat/completions", self._chat_completions)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5)

    async def __aenter__(self) -> "ScriptedServer":
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        """Base URL in the sense of the Anthropic SDK."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def openai_url(self) -> str:
        """Base URL in the sense of the OpenAI SDK."""
        return f"{self.url}/v1"

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        body, fault = await self._accept(request)
        problems = anthropic_problems(body) + _forged(body)
        if refusal := self._refusal(request.headers.get("x-api-key", ""), fault, problems):
            return _error(refusal, {"type": "error", "error": {"type": "error", "message": refusal.message}})
        answer = self._answer(body, fault)
        if not body.get("stream"):
            return web.json_response(anthropic_message(answer))
        frames = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in anthropic_events(answer))
        return await self._stream(request, frames, fault, answer.step.chunk_milliseconds)

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        body, fault = await self._accept(request)
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        if refusal := self._refusal(key, fault, openai_problems(body)):
            return _error(refusal, {"error": {"message": refusal.message, "type": "error", "code": None}})
        answer = self._answer(body, fault)
        if not body.get("stream"):
            return web.json_response(openai_message(answer))
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        chunks = [json.dumps(chunk) for chunk in openai_chunks(answer, usage=usage)]
        frames = (f"data: {data}\n\n" for data in [*chunks, "[DONE]"])
        return await self._stream(request, frames, fault, answer.step.chunk_milliseconds)

    async def _accept(self, request: web.Request) -> tuple[dict[str, Any], Fault]:
        body: dict[str, Any] = await request.json()
        self.requests.append(RecordedRequest(request.path, dict(request.headers), body))
        return body, self._faults.get(len(self.requests) - 1, Fault())

    def _refusal(self, key: str, fault: Fault, problems: list[str]) -> Fault | None:
        if self._key and key != self._key:
            return Fault(status=401, message=f"Incorrect API key provided: {key}")
        if fault.status:
            return fault
        return Fault(status=400, message="; ".join(problems)) if problems else None

    def _answer(self, body: Mapping[str, Any], fault: Fault) -> Answer:
        index = sum(message["role"] == "assistant" for message in body["messages"])
        step = ScriptedStep() if fault.empty else step_at(self._script, index)
        if body.get("tool_choice") in ("none", {"type": "none"}):
            step = step.model_copy(update={"tool_calls": ()})
        return Answer(
            step=step,
            index=index,
            input_tokens=len(json.dumps(body["messages"]).split()),
            model=str(body.get("model")),
            duplicate_call_ids=fault.duplicate_call_ids,
            unknown_tool=fault.unknown_tool,
            bad_arguments=fault.bad_arguments,
        )

    async def _stream(
        self, request: web.Request, frames: Iterable[str], fault: Fault, pause_milliseconds: int
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        sent = 0
        try:
            if fault.hang:
                await asyncio.Event().wait()
            if fault.malformed_json:
                await response.write(b'data: {"type": "message_start", "mess\n\n')
            if fault.malformed_sse:
                await response.write(b"data: \xff\xfe\n\n")
            for frame in frames:
                raw = frame.encode()
                if fault.cut_after_bytes is not None and sent + len(raw) > fault.cut_after_bytes:
                    await response.write(raw[: fault.cut_after_bytes - sent])
                    assert request.transport is not None
                    request.transport.close()
                    return response
                await response.write(raw)
                sent += len(raw)
                await asyncio.sleep(pause_milliseconds / 1000)
            await response.write_eof()
        except (ConnectionError, asyncio.CancelledError):
            self.left_early.set()
            raise
        return response


def _forged(body: Mapping[str, Any]) -> list[str]:
    """Thinking that does not come back as it was signed."""
    return [
        f"messages.{position}: the signature of a thinking block does not match"
        for position, message in enumerate(body["messages"])
        for block in message["content"]
        if isinstance(block, dict)
        and block["type"] == "thinking"
        and block["signature"] != signature(block["thinking"])
    ]


def _error(fault: Fault, body: dict[str, Any]) -> web.Response:
    headers = {"retry-after": fault.retry_after} if fault.retry_after else {}
    return web.json_response(body, status=fault.status, headers=headers)


async def _serve(given: Mapping[str, Any], port: int) -> None:
    steps = [ScriptedStep.model_validate(step) for step in given["steps"]]
    faults = {int(index): Fault(**fault) for index, fault in (given.get("faults") or {}).items()}
    async with ScriptedServer(steps, faults, port=port) as server:
        print(f"Anthropic base URL {server.url}, OpenAI base URL {server.openai_url}", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a scripted model in two wire formats.")
    parser.add_argument(
        "script", type=Path, help="YAML with `steps` (as in a run's model.script) and `faults` by request"
    )
    parser.add_argument("--port", type=int, default=8766)
    given = parser.parse_args()
    import yaml  # only the command reads files

    try:
        asyncio.run(_serve(yaml.safe_load(given.script.read_text()), given.port))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
