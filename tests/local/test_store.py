"""The kept store: served, locked, shared with readers, and gone without a trace when it was not to be kept."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from towline.clock import utc_now
from towline.errors import Invalid
from towline.events import runs
from towline.events.event import RunRef
from towline.events.log import EventLog
from towline.local import valkey
from towline.local.faults import MachineCannot, StoreInUse
from towline.local.runtime import remove_abandoned, remove_folder
from towline.local.store import Folder, Holder, opened, owned

RUN = RunRef("default", "11111111-2222-4333-8444-555555555555", "hello")


async def test_a_store_serves_on_a_socket_of_its_own_with_the_settings_the_operator_demands(tmp_path: Path) -> None:
    async with owned(tmp_path / "store", verb="run") as held:
        settings = await held.store.client.execute_command("CONFIG", "GET", "appendonly", "maxmemory-policy", "port")
        assert dict(zip(settings[::2], settings[1::2], strict=True)) == {
            b"appendonly": b"yes",
            b"maxmemory-policy": b"noeviction",
            b"port": b"0",
        }
        assert held.url.startswith("unix://")
        assert len(held.url) < 100


async def test_what_was_written_is_there_when_the_store_is_opened_again(tmp_path: Path) -> None:
    async with owned(tmp_path, verb="run") as held:
        await runs.create(held.store, RUN, b"{}", now=utc_now())
    async with opened(tmp_path, verb="tail") as (store, holder):
        assert [event.type for event in await EventLog(store, RUN).all()] == ["run.started"]
        assert holder is None


async def test_a_second_launcher_is_told_who_has_the_store(tmp_path: Path) -> None:
    async with owned(tmp_path, verb="run", uid=RUN.uid):
        with pytest.raises(StoreInUse) as refused:
            async with owned(tmp_path, verb="run", uid="another"):
                raise AssertionError("two launchers on one store")
    assert f"`towline run` (pid {os.getpid()})" in str(refused.value)
    assert "--store" in str(refused.value)


async def test_a_launcher_waits_for_those_who_merely_read(tmp_path: Path) -> None:
    async with owned(tmp_path, verb="run"):
        pass
    reading, read = asyncio.Event(), asyncio.Event()

    async def look() -> None:
        async with opened(tmp_path, verb="ls"):
            reading.set()
            await read.wait()

    async def launch() -> str:
        async with owned(tmp_path, verb="run", uid=RUN.uid) as held:
            return held.holder.uid

    looking = asyncio.create_task(look())
    await reading.wait()
    launching = asyncio.create_task(launch())
    await asyncio.sleep(1)
    assert not launching.done()
    read.set()
    assert await asyncio.wait_for(launching, 60) == RUN.uid
    await looking


async def test_a_reader_shares_the_store_that_a_launcher_holds(tmp_path: Path) -> None:
    async with owned(tmp_path, verb="run", uid=RUN.uid) as held:
        await runs.create(held.store, RUN, b"{}", now=utc_now())
        async with opened(tmp_path, verb="tail") as (store, holder):
            assert (await EventLog(store, RUN).state()).head == 1
            assert holder == Holder("run", os.getpid(), held.url.removeprefix("unix://"), RUN.uid)


async def test_two_readers_of_a_store_at_rest_share_it(tmp_path: Path) -> None:
    async with owned(tmp_path, verb="run") as held:
        await runs.create(held.store, RUN, b"{}", now=utc_now())

    async def read() -> int:
        async with opened(tmp_path, verb="ls") as (store, _):
            return (await EventLog(store, RUN).state()).head

    assert await asyncio.gather(read(), read()) == [1, 1]


async def test_a_store_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no kept runs in"):
        async with opened(tmp_path / "nowhere", verb="ls"):
            pass
    assert not (tmp_path / "nowhere").exists()


async def test_a_lock_file_left_by_a_dead_launcher_blocks_nobody(tmp_path: Path) -> None:
    tmp_path.joinpath("lock").write_text(json.dumps({"verb": "run", "pid": 1, "socket": "/nowhere", "uid": ""}))
    async with owned(tmp_path, verb="run") as held:
        await held.store.ping()


async def test_a_broken_store_is_refused_with_the_end_of_the_servers_log(tmp_path: Path) -> None:
    async with owned(tmp_path, verb="run"):
        pass
    for part in Folder(tmp_path).valkey.glob("appendonlydir/*.manifest"):
        part.write_text("file nonsense\n")
    with pytest.raises(MachineCannot, match=r"(?s)the event store did not start.*[Aa]ppend"):
        async with owned(tmp_path, verb="run"):
            pass


async def test_a_program_that_is_no_server_is_named(tmp_path: Path) -> None:
    with pytest.raises(MachineCannot, match="/nowhere/valkey-server"):
        await valkey.start_valkey(
            Path("/nowhere/valkey-server"), data=tmp_path / "d", socket=tmp_path / "s", log=tmp_path / "log"
        )


async def test_without_keep_nothing_stays(tmp_path: Path) -> None:
    async with owned(None, verb="run") as held:
        runtime, pid = held.runtime, held.valkey.pid
        assert held.folder.installation_secret().stat().st_mode & 0o777 == 0o600
        assert runtime.stat().st_mode & 0o777 == 0o700
    assert not runtime.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_dead_server_is_started_again_on_the_same_data(tmp_path: Path) -> None:
    died = asyncio.Event()
    async with owned(tmp_path, verb="run", on_exit=died.set) as held:
        await runs.create(held.store, RUN, b"{}", now=utc_now())
        held.valkey.kill()
        await asyncio.wait_for(died.wait(), 60)
        await held.restart(lambda: None)
        assert (await EventLog(held.store, RUN).state()).head == 1


OWNER = """
import asyncio, sys
from pathlib import Path
from towline.local.runtime import write_secret
from towline.local.store import owned

async def main():
    async with owned(Path(sys.argv[1]), verb="run") as held:
        write_secret(held.runtime / "model-key", b"secret")
        print(held.valkey.pid, held.runtime, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_launcher_killed_with_9_leaves_no_server_and_its_keys_go_with_the_next_one(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, runtime = owner.stdout.readline().split()
    server = os.pidfd_open(int(pid))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(server, ended.set)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    await asyncio.wait_for(ended.wait(), 60)
    asyncio.get_running_loop().remove_reader(server)
    os.close(server)
    assert Path(runtime, "model-key").exists()

    remove_abandoned(Path(runtime).parent)
    assert Path(runtime).exists(), "so young a folder may belong to a launcher that is about to lock it"
    os.utime(Path(runtime, "lock"), (0, 0))
    remove_abandoned(Path(runtime).parent)

    assert not Path(runtime).exists()
    async with owned(tmp_path, verb="run") as held:
        await held.store.ping()


def test_whatever_a_sandbox_leaves_in_a_folder_can_be_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    folder = tmp_path / "folder"
    (folder / "closed" / "inner").mkdir(parents=True)
    (folder / "closed").chmod(0)
    (folder / "link").symlink_to(outside)
    (folder / "closed-file").write_text("")
    os.mkfifo(folder / "fifo")
    deep = os.open(folder, os.O_RDONLY)
    for _ in range(3000):  # deeper than recursion goes, and than a path can be long
        os.mkdir("further", dir_fd=deep)
        further = os.open("further", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = further
    os.close(deep)

    remove_folder(folder)

    assert not folder.exists()
    assert (outside / "kept").read_text() == "kept"
