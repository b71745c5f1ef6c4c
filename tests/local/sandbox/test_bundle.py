"""The interpreter bundle needs nothing of the image that it runs in."""

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.local.toolserver.running import Running, running
from towline.errors import SandboxFailed
from towline.sandbox import bundle as bundles
from towline.sandbox.bubblewrap import LocalSandbox
from towline.sandbox.bundle import Bundle, build_bundle
from towline.sandbox.guest import Guest
from towline.sandbox.provider import SandboxRequest

BUSYBOX = Path("/bin/busybox")


@pytest.fixture
def empty_image(tmp_path: Path) -> Path:
    """A root folder with a static busybox and nothing else: no libc, no Python."""
    if not BUSYBOX.exists():
        pytest.skip("no /bin/busybox: install the package busybox-static")
    if b"INTERP" in subprocess.run(["readelf", "-lW", BUSYBOX], capture_output=True, check=False).stdout:
        pytest.skip("/bin/busybox is not static: install the package busybox-static")
    image = tmp_path / "image"
    (image / "bin").mkdir(parents=True)
    shutil.copy(BUSYBOX, image / "bin" / "busybox")
    for applet in ("sh", "ls", "cat", "env", "sleep", "setsid"):
        (image / "bin" / applet).symlink_to("busybox")
    return image


async def test_in_an_image_of_a_static_busybox_everything_works(provider: LocalSandbox, empty_image: Path) -> None:
    request = SandboxRequest(name="busybox", key=secrets.token_hex(32), image=str(empty_image))
    handle = await provider.create(request)
    async with Guest(handle.endpoint, request.key) as guest:
        assert (await guest.hello())["shell"] == "/bin/sh"
        result = await guest.call("a", "exec", command="ls /; exit 4")
        assert result["text"].split() == ["bin", "dev", "opt", "proc", "sandbox", "tmp"]
        assert result["exit_code"] == 4
        assert (await guest.call("b", "exec", command="setsid sleep 300 & echo done"))["killed"] == 1
        assert (await guest.call("c", "write_file", path="d/f", content="text"))["outcome"] == "ok"
        assert (await guest.call("d", "exec", command="cat d/f"))["text"] == "text"
        assert (await guest.call("e", "read_file", path="d/f"))["text"] == "text"
        assert (await guest.call("f", "search", pattern="t.x"))["text"] == "d/f:1: text\n"
        assert "LD_LIBRARY_PATH" not in (await guest.call("g", "exec", command="env"))["text"]


async def test_in_an_image_without_a_shell_the_file_tools_work(provider: LocalSandbox, empty_image: Path) -> None:
    shutil.rmtree(empty_image / "bin")
    request = SandboxRequest(name="nothing", key=secrets.token_hex(32), image=str(empty_image))
    handle = await provider.create(request)
    async with Guest(handle.endpoint, request.key) as guest:
        assert (await guest.hello())["shell"] is None
        result = await guest.call("a", "exec", command="true")
        assert (result["outcome"], result["code"]) == ("error", "NoShell")
        assert (await guest.call("b", "write_file", path="f", content="text"))["outcome"] == "ok"
        assert (await guest.call("c", "edit_file", path="f", old_text="t", new_text="T", replace_all=True))[
            "outcome"
        ] == "ok"
        assert (await guest.call("d", "read_file", path="f"))["text"] == "TexT"
        assert (await guest.call("e", "list_dir"))["text"] == "f\n"


async def test_the_bundled_server_stays_small_under_a_flood(bundle: Bundle, tmp_path: Path) -> None:
    command = tuple(bundle.command(mounted_at=bundle.folder))  # type: ignore[arg-type]
    async with running(tmp_path / "v", program=command) as server:
        await _flood(server)
        assert server.status("VmHWM") < 25 * 1024
        if os.getuid() != 0:
            return  # it shows what it has loaded to root alone
        loaded = Path(f"/proc/{server.process.pid}/maps").read_text()
        outside = {line.split()[-1] for line in loaded.splitlines() if ".so" in line and str(bundle.folder) not in line}
        assert outside == set(), "libraries of the host were loaded"


async def _flood(server: Running) -> None:
    result = await server.exec("head -c 100000000 /dev/zero")
    assert result["total_bytes"] == 100_000_000
    await server.run("search", pattern="x")


def test_a_second_build_takes_the_first_ones_result(bundle: Bundle) -> None:
    marker = bundle.folder / "marker"
    marker.touch()
    try:
        assert build_bundle(bundle.folder.parent) == bundle
        assert marker.exists()
    finally:
        marker.unlink()


def test_it_holds_no_more_than_it_should(bundle: Bundle) -> None:
    files = [path for path in bundle.folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < (25 if shutil.which("strip") else 80) * 1024 * 1024
    assert [path.name for path in bundle.folder.iterdir()] == ["rt"]
    assert not [path for path in files if any(word in path.name for word in ("ssl", "crypto", "sqlite", "tkinter"))]
    assert all(os.access(path, os.R_OK) for path in files)


def test_builders_at_once_publish_one_whole_bundle(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; from towline.sandbox.bundle import build_bundle; "
        "print(build_bundle(pathlib.Path(sys.argv[1])).folder)"
    )
    builders = [
        subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    folders = {builder.communicate(timeout=60)[0] for builder in builders}
    assert len(folders) == 1
    assert [builder.returncode for builder in builders] == [0, 0]
    assert [str(path) for path in tmp_path.iterdir()] == [folders.pop().strip()], "nothing half-built is left"


def test_another_tool_server_makes_another_bundle(bundle: Bundle, tmp_path: Path) -> None:
    package = tmp_path / "toolserver"
    shutil.copytree(Path(bundles.__file__).parent.parent / "toolserver", package)
    interpreter = Path(sys.executable).resolve()
    before = bundles._key(interpreter, package)
    (package / "auth.py").write_text((package / "auth.py").read_text() + "\n")
    assert bundles._key(interpreter, package) != before


def test_a_bundle_is_built_without_strip_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    built = build_bundle(tmp_path / "cache")
    ran = subprocess.run(
        [*built.command(mounted_at=built.folder)[:-2], "-c", "import toolserver.__main__ as m; print(m.DEFAULT_PATH)"],  # type: ignore[arg-type]
        capture_output=True,
        text=True,
        env={},
        timeout=20,
    )
    assert ran.stdout.startswith("/usr/local/sbin"), ran.stderr


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxFailed, match="file") as caught:
        build_bundle(tmp_path / "file" / "cache")
    assert caught.value.reason == "BundleFailed"


@pytest.mark.parametrize("python", ["/usr/bin/python3"])
async def test_another_interpreter_of_this_machine_can_be_bundled(
    python: str, tmp_path: Path, new_request: Callable[[], SandboxRequest]
) -> None:
    """Debian's has libpython inside, a pyenv's has it beside: both layouts must do."""
    version = "import sys; sys.exit(sys.version_info < (3, 11))"
    if not Path(python).exists() or subprocess.run([python, "-c", version]).returncode != 0:
        pytest.skip(f"no {python} of version 3.11 or later")
    package = Path(bundles.__file__).parents[2]
    program = (
        "import pathlib, sys; sys.path.insert(0, sys.argv[1]); from towline.sandbox.bundle import build_bundle; "
        "b = build_bundle(pathlib.Path(sys.argv[2])); print(b.folder, b.loader)"
    )
    built = await asyncio.create_subprocess_exec(
        python, "-I", "-c", program, package, tmp_path / "cache", stdout=asyncio.subprocess.PIPE
    )
    folder, loader = (await built.communicate())[0].decode().split()
    provider = LocalSandbox(Bundle(Path(folder), loader), tmp_path / "r")
    request = new_request()
    try:
        handle = await provider.create(request)
        async with Guest(handle.endpoint, request.key) as guest:
            assert (await guest.call("a", "exec", command="echo hi"))["text"] == "hi\n"
    finally:
        await provider.aclose()
