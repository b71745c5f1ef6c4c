"""Run as a program: seals itself and does what harness and gateway do for a living. Prints what went right as JSON."""

import sys

from towline.seal import seal_process

seal_process()

import asyncio  # noqa: E402
import json  # noqa: E402
import ssl  # noqa: E402
import threading  # noqa: E402

import aiohttp  # noqa: E402
import redis.asyncio  # noqa: E402
import uvicorn  # noqa: E402
import uvloop  # noqa: E402

DONE = []


async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


async def work():
    assert await asyncio.to_thread(threading.get_native_id) != threading.get_native_id()
    DONE.append("threads")

    assert await asyncio.get_running_loop().getaddrinfo("localhost", 80)
    DONE.append("getaddrinfo")

    client = redis.asyncio.Redis.from_url(sys.argv[1], protocol=2, legacy_responses=False)
    await client.execute_command("XADD", sys.argv[2], "*", "a", "b")
    assert len(await client.execute_command("XREAD", "STREAMS", sys.argv[2], "0")) == 1
    await client.aclose()
    DONE.append("redis")

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with aiohttp.ClientSession() as session, session.get(f"http://localhost:{port}/") as response:
        assert await response.text() == "ok"
    server.should_exit = True
    await serving
    DONE.append("uvicorn and aiohttp")

    ssl.create_default_context()
    DONE.append("tls")


asyncio.run(work())
asyncio.run(work(), loop_factory=uvloop.new_event_loop) if sys.version_info >= (3, 12) else uvloop.run(work())
DONE.append("uvloop")
print(json.dumps(DONE))
