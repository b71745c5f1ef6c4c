"""File tools on a live tool server: walks that end, races that are lost by the attacker."""

import asyncio
import ctypes
import os
import threading
import time
from pathlib import Path

from tests.local.toolserver.running import Running, until

SECRET = "secret of the host"


async def test_list_dir_shows_kinds_sorted_and_follows_no_link(server: Running) -> None:
    (server.workspace / "b" / "c").mkdir(parents=True)
    (server.workspace / "b" / "c" / "deep").write_text("")
    (server.workspace / "a.txt").write_text("")
    (server.workspace / "link").symlink_to("/etc")
    os.mkfifo(server.workspace / "pipe")
    assert (await server.run("list_dir"))["text"] == "a.txt\nb/\nlink -> /etc\npipe (no regular file)\n"
    assert (await server.run("list_dir", path="b", depth=2))["text"] == "c/\nc/deep\n"
    assert (await server.run("list_dir", path=str(server.workspace / "b")))["text"] == "c/\n"
    assert (await server.run("list_dir", path="a.txt"))["code"] == "NotDirectory"
    assert (await server.run("list_dir", path="link"))["code"] == "PathEscapes"
    assert (await server.run("list_dir", path="absent"))["code"] == "NotFound"


async def test_names_that_are_no_text_are_listed_safely(server: Running) -> None:
    os.close(os.open(bytes(server.workspace) + b"/bad\xff\nname", os.O_CREAT))
    assert (await server.run("list_dir"))["text"] == "bad\ufffd\\nname\n"


async def test_a_very_large_folder_is_listed_within_bounds(server: Running) -> None:
    def fill() -> None:
        for number in range(5_001):
            os.close(os.open(server.workspace / f"file-{number:05}", os.O_CREAT))

    await asyncio.to_thread(fill)  # it takes seconds, in which the server closes connections
    result = await server.run("list_dir")
    assert result["truncated"]
    assert len(result["text"]) <= 40_000
    assert "more than 5000 entries" in result["text"]


async def test_search_names_path_line_and_text(server: Running) -> None:
    (server.workspace / "src" / "deep").mkdir(parents=True)
    (server.workspace / ".git").mkdir()
    (server.workspace / "src" / "one.py").write_text("import os\nprint(os.name)\n")
    (server.workspace / "src" / "deep" / "two.py").write_text("os\r\n" + "x" * 2000 + "os")
    (server.workspace / "src" / "notes.txt").write_text("os\n")
    (server.workspace / ".git" / "config").write_text("os\n")
    (server.workspace / "binary").write_bytes(b"\0os\n")
    (server.workspace / "link").symlink_to("/etc/os-release")
    found = (await server.run("search", pattern=r"\bos\b"))["text"]
    assert (
        found == "src/deep/two.py:1: os\nsrc/notes.txt:1: os\nsrc/one.py:1: import os\nsrc/one.py:2: print(os.name)\n"
    )
    assert (await server.run("search", pattern="os$", glob="*.txt"))["text"] == "src/notes.txt:1: os\n"
    assert (await server.run("search", pattern="^os$", glob="**/*.py"))["text"] == "src/deep/two.py:1: os\n"
    assert (await server.run("search", pattern="^os$", glob="src/*.txt"))["text"] == "src/notes.txt:1: os\n"
    assert (await server.run("search", pattern="import", path="src/one.py"))["text"] == "src/one.py:1: import os\n"
    assert (await server.run("search", pattern="import", path="./src/"))["text"] == "src/one.py:1: import os\n"
    assert (await server.run("search", pattern="os", path=".git"))["text"] == ".git/config:1: os\n"
    assert (await server.run("search", pattern="no such thing"))["text"] == ""
    first = (await server.run("search", pattern="os", max_results=1))["text"]
    assert first.endswith("[stopped after 1 matches]\n")
    assert (await server.run("search", pattern="os", path="absent"))["code"] == "NotFound"
    assert (await server.run("search", pattern="os", path="link"))["code"] == "PathEscapes"


async def test_a_pattern_that_is_none_is_explained(server: Running) -> None:
    for pattern in ("(", "*", "a{99999999999}", "(?P<x>a)(?P<x>b)"):
        result = await server.run("search", pattern=pattern)
        assert (result["outcome"], result["code"]) == ("error", "InvalidPattern")
        assert result["text"].startswith("pattern: ")


async def test_a_catastrophic_pattern_ends_with_its_time(server: Running) -> None:
    (server.workspace / "a").write_text("first\n")
    (server.workspace / "b").write_text("a" * 40 + "b")
    result = await server.run("search", pattern="(a|a)*$|^first", timeout_seconds=1)
    assert (result["outcome"], result["code"], result["timed_out"]) == ("error", "TimedOut", True)
    assert result["text"] == "a:1: first\n", "what was found before is kept"
    assert server.descendants() == []


async def test_a_search_that_does_not_end_stops_nobody_and_can_be_cancelled(server: Running) -> None:
    (server.workspace / "b").write_text("a" * 40 + "b")
    searching = asyncio.create_task(server.guest.call("s", "search", pattern="(a|a)*$"))
    await until(server.descendants)
    async with server.another_guest() as other:
        assert (await other.call("x", "exec", command="echo hi"))["text"] == "hi\n"
        assert not searching.done()
        await other.ask("DELETE", "/v1/calls/s")
    assert (await searching)["outcome"] == "cancelled"
    assert server.descendants() == []


async def test_search_ignores_pipes_and_devices_and_huge_files(server: Running) -> None:
    os.mkfifo(server.workspace / "pipe")
    (server.workspace / "zero").symlink_to("/dev/zero")
    with (server.workspace / "sparse").open("wb") as file:
        file.truncate(100 * 1024**3)
    result = await server.run("search", pattern="x")
    assert result["text"] == "sparse: [skipped: more than 10485760 bytes]\n"
    assert not result["timed_out"], "the sparse file was not read"


async def test_deeply_nested_folders_end_a_walk_without_failing_it(server: Running) -> None:
    made = await server.exec(
        "n=0; while [ $n -lt 400 ]; do mkdir d && cd d || exit 1; n=$((n+1)); done; echo needle > f"
    )
    assert made["exit_code"] == 0
    (server.workspace / "f").write_text("needle")
    assert (await server.run("search", pattern="needle"))["text"] == "f:1: needle\n"


async def test_nothing_outside_is_reached_while_a_folder_turns_into_a_link(server: Running, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text(SECRET)
    inside = server.workspace / "d"
    inside.mkdir()
    (inside / "file").write_text("harmless")
    os.symlink(outside, server.workspace / "evil")
    stop = threading.Event()
    exchange = ctypes.CDLL(None).renameat2
    here, there, at_cwd, both = bytes(inside), bytes(server.workspace / "evil"), -100, 2

    def swap() -> None:
        """`d` is now the folder, now a link to the outside, as fast as a process can exchange them."""
        while not stop.is_set():
            exchange(at_cwd, here, at_cwd, there, both)

    attacker = threading.Thread(target=swap)
    attacker.start()
    seen: dict[str, int] = {}
    try:
        until_then = time.monotonic() + 2
        while time.monotonic() < until_then:
            for result in (
                await server.run("read_file", path="d/file"),
                await server.run("write_file", path="d/planted", content="x"),
                await server.run("edit_file", path="d/file", old_text="secret", new_text="leaked"),
                await server.run("search", pattern="secret", path="d"),
            ):
                assert SECRET not in result["text"]
                seen[result["code"] or "ok"] = seen.get(result["code"] or "ok", 0) + 1
    finally:
        stop.set()
        attacker.join()
    assert os.listdir(outside) == ["file"]
    assert (outside / "file").read_text() == SECRET
    assert seen.get("PathEscapes", 0) > 0, f"the race was never met: {seen}"
    assert seen["ok"] > 0


async def test_a_full_disk_is_told(server: Running) -> None:
    # /dev/full is no regular file, so a tiny limit on file sizes plays the disk.
    os.system(f"prlimit --fsize=4096 --pid {server.process.pid}")
    result = await server.run("write_file", path="big", content="x" * 10_000)
    assert result["outcome"] == "error"
    assert "big" in result["text"]
    assert os.listdir(server.workspace) == []
