"""A gateway double: a real HTTP server whose answers are scripted, call by call."""

import asyncio
import json
from contextlib import asynccontextmanager

from aiohttp import web

RESULT = {"content": [{"type": "text", "text": "out"}], "isError": False, "_meta": {"towline.dev/outcome": "ok"}}
TOOLS = {"tools": [{"name": "exec", "description": "Run.", "inputSchema": {"type": "object"}}]}


class ScriptedGateway:
    """Answers the n-th tools/call as the n-th of `answers` says; the last one stands for all that follow. `listing`
    answers tools/list."""

    def __init__(self, *answers, listing=None):
        self._answers, self._listing, self.requests = list(answers), listing or result(TOOLS), []
        self.left = asyncio.Event()
        """A client went away before it had its answer."""

    async def handle(self, request):
        body = await request.json()
        self.requests.append((request.headers.copy(), body))
        if body["method"] == "tools/list":
            return await self._listing(request, body["id"])
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        try:
            return await answer(request, body["id"])
        except asyncio.CancelledError:
            self.left.set()
            raise

    @property
    def calls(self):
        """The parameters of every tools/call."""
        return [body["params"] for _, body in self.requests if body["method"] == "tools/call"]


def result(value=None, status=200):
    async def answer(request, id_):
        return web.json_response({"jsonrpc": "2.0", "id": id_, "result": value or RESULT}, status=status)

    return answer


def error(reason, *, code=-32040, status=200, message="no", **more):
    async def answer(request, id_):
        data = {"reason": reason, **more} if reason else None
        body = {"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": message, "data": data}}
        return web.json_response(body, status=status)

    return answer


def plain(status, text="<html>", content_type="text/html"):
    async def answer(request, id_):
        return web.Response(status=status, text=text, content_type=content_type)

    return answer


def stream(*messages, cut=False, hang=False):
    async def answer(request, id_):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": ping\r\n\r\n")
        for message in messages:
            data = {"jsonrpc": "2.0", **({} if "method" in message else {"id": id_}), **message}
            await response.write(f"event: message\r\ndata: {json.dumps(data)}\r\n\r\n".encode())
        if hang:
            await asyncio.Event().wait()
        if cut:
            request.transport.close()
        return response

    return answer


@asynccontextmanager
async def serving(*answers, listing=None):
    """The gateway and its URL."""
    scripted = ScriptedGateway(*answers, listing=listing)
    app = web.Application()
    app.router.add_post("/mcp", scripted.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield scripted, f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()
