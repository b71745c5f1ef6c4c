"""A run in a real store, and harness processes that work on it."""

import asyncio
import json
import os
import secrets
import sys
import time
from contextlib import asynccontextmanager

import pytest

from tests.processes import die_with_the_test
from towline.api.snapshot import Model, Snapshot
from towline.clock import utc_now
from towline.events import runs
from towline.events.event import RunRef
from towline.events.follow import follow
from towline.events.log import EventLog
from towline.events.store import Store


class HarnessRun:
    """One run: its snapshot in the store, its log, and the processes started for it."""

    def __init__(self, store, url, folder):
        self.store, self._url, self._folder = store, url, folder
        self.ref = RunRef("default", secrets.token_hex(8), "run")
        self.key_file = folder / "key"
        self.processes = []

    async def create(self, model, **given):
        names = {"namespace": "default", "name": "run", "uid": self.ref.uid, "prompt": "Go."}
        snapshot = Snapshot.model_validate({**names, "model": model, **given})
        await runs.create(self.store, self.ref, snapshot.to_json(), now=utc_now())

    async def start(self, epoch=1, gateway_url="http://127.0.0.1:9/mcp", **environment):
        token = self._folder / "token"
        token.write_text("token")
        variables = {
            "TOWLINE_REDIS_URL": self._url,
            "TOWLINE_RUN_NAMESPACE": self.ref.namespace,
            "TOWLINE_RUN_UID": self.ref.uid,
            "TOWLINE_EPOCH": str(epoch),
            "TOWLINE_GATEWAY_URL": gateway_url,
            "TOWLINE_GATEWAY_TOKEN_FILE": str(token),
            "TOWLINE_MODEL_KEY_FILE": str(self.key_file) if self.key_file.exists() else "",
            "TOWLINE_LOG_LEVEL": "debug",
            **environment,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "towline.harness",
            env={"PATH": os.environ["PATH"], **variables},
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=die_with_the_test,
        )
        self.processes.append(process)
        return process

    async def end(self, process, within=60):
        """Exit code and log lines of a process."""
        async with asyncio.timeout(within):
            _, stderr = await process.communicate()
        return process.returncode, [json.loads(line) for line in stderr.splitlines()]

    async def work(self, **options):
        return await self.end(await self.start(**options))

    async def events(self):
        return await EventLog(self.store, self.ref).all()

    async def types(self):
        return [event.type for event in await self.events()]

    async def payload(self, type):
        """The data of the only event of its type."""
        [event] = [event for event in await self.events() if event.type == type]
        return event.payload

    async def wait_for(self, type, within=60):
        """The first event of a type."""
        async with asyncio.timeout(within):
            async for event in follow(self.store, self.ref):
                if event.type == type:
                    return event
        raise AssertionError(f"the log ended without {type}")

    async def live_text(self, characters, within=60):
        """Wait until so much of an answer has been shown."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            entries = await self.store.client.execute_command("XRANGE", self.ref.keys.live, "-", "+")
            if sum(len(fields[b"text"]) for _, fields in entries) >= characters:
                return
            await asyncio.sleep(0.02)
        raise AssertionError("no live text")


def scripted(*steps):
    """A model that answers from the snapshot."""
    return {"api": "Scripted", "provider": "test", "name": "scripted", "script": list(steps)}


def served(server, api="AnthropicMessages", **given):
    """A model behind the scripted server."""
    base_url = server.url if api == "AnthropicMessages" else server.openai_url
    return Model(api=api, provider="test", name="m", base_url=base_url, **given).model_dump()


@asynccontextmanager
async def harness_run(url, folder):
    store = Store.connect(url)
    run = HarnessRun(store, url, folder)
    try:
        yield run
    finally:
        for process in run.processes:
            if process.returncode is None:
                process.kill()
                await process.communicate()
        await store.aclose()


@pytest.fixture
async def run(valkey_url, tmp_path):
    async with harness_run(valkey_url, tmp_path) as one:
        yield one
