"""A server that dies in the middle: what was acknowledged is there, once, and writers go on by themselves."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from towline.errors import Rewound
from towline.events import runs
from towline.events.appender import Appender
from towline.events.follow import follow
from towline.events.log import EventLog
from towline.events.notices import KINDS, Notices
from towline.events.store import Store

BOUND = 20.0


class Server:
    """A Valkey on a unix socket that can be killed and started on the same data."""

    def __init__(self, binary: str, folder: Path) -> None:
        self._binary, self._folder = binary, folder
        self.url = f"unix://{folder}/valkey.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [self._binary, "--port", "0", "--unixsocket", "valkey.sock", "--appendonly", "yes", "--save", ""],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
        )

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)


@pytest.fixture
def mortal(valkey_binary: str, tmp_path: Path) -> Iterator[Server]:
    server = Server(valkey_binary, tmp_path)
    server.start()
    yield server
    server.kill()


async def test_a_server_that_hangs_is_given_up_and_heard_again(mortal, run, said):
    store = Store.connect(mortal.url, patience_seconds=BOUND)
    await EventLog(store, run).state()  # waits until the server is up, which ping does not
    notices = Notices(store, silence_seconds=0.1)
    async with notices.watch(run) as watch:
        mortal.signal(signal.SIGSTOP)
        await asyncio.sleep(0.5)  # longer than two silences: the time is what is tested
        mortal.signal(signal.SIGCONT)

        assert await watch.wait(BOUND) == KINDS
        await runs.append_once(store, run, 1, [said()], guard="x")
        assert "log" in await watch.wait(BOUND)
    await notices.aclose()
    await store.aclose()


async def test_writers_and_followers_outlive_three_deaths_of_the_server(mortal, run, said):
    """On a disk that is busy the server holds writes back for up to two seconds, so a death may be a loss, too."""
    store = Store.connect(mortal.url, patience_seconds=BOUND)
    appender = Appender(store, run, src="harness", epoch=1, nonce="n", patience_seconds=BOUND)
    written: list[str] = []
    enough = asyncio.Event()

    async def write() -> None:
        while not enough.is_set():
            one = said()
            await appender.append([one])
            written.append(one.id)
        await appender.finish(said(type="run.completed"))

    async def view() -> list[str]:
        seen, next_seq = dict[str, None](), 1
        while True:
            try:
                async for event in follow(store, run, next_seq):
                    seen[event.id] = None
                    next_seq = event.seq + 1
                return list(seen)
            except Rewound as loss:
                next_seq = loss.head + 1

    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as tasks:
        viewer = tasks.create_task(view())
        tasks.create_task(write())
        for deaths in range(1, 4):
            while len(written) < deaths * 100:
                await asyncio.sleep(0)
            mortal.kill()
            mortal.start()
        enough.set()

    events = await EventLog(store, run).all()
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert written == [event.id for event in events[:-1] if event.type != "store.lost"]
    assert sorted(viewer.result()) == sorted(event.id for event in events)
    await store.aclose()
