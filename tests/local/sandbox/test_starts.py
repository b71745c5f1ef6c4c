"""A sandbox on this machine that cannot be made is told with what to do, and nothing is run instead."""

import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.local.sandbox.inside import NewRequest, sandbox
from towline.errors import SandboxFailed
from towline.sandbox.bubblewrap import LocalSandbox
from towline.sandbox.bundle import Bundle
from towline.sandbox.provider import SandboxRequest


async def test_without_bubblewrap_nothing_is_run(bundle: Bundle, tmp_path: Path, new_request: NewRequest) -> None:
    provider = LocalSandbox(bundle, tmp_path / "r", bwrap=str(tmp_path / "absent"))
    with pytest.raises(SandboxFailed) as caught:
        await provider.create(new_request())
    assert caught.value.reason == "BubblewrapMissing"
    assert list((tmp_path / "r").glob("*.sock")) == []


async def test_without_user_namespaces_nothing_is_run_and_the_message_says_what_to_do(
    bundle: Bundle, tmp_path: Path, new_request: NewRequest
) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    provider = LocalSandbox(bundle, tmp_path / "r", bwrap=str(refusing))
    for _ in range(2):
        with pytest.raises(SandboxFailed) as caught:
            await provider.create(new_request())
        assert caught.value.reason == "UserNamespacesUnavailable"
        for part in (
            "max_user_namespaces",
            "unprivileged_userns_clone",
            "apparmor",
            "--security-opt",
            "No permissions",
        ):
            assert part in caught.value.message


async def test_a_kernel_that_cannot_forbid_nested_namespaces_still_gets_a_sandbox(
    bundle: Bundle, tmp_path: Path, new_request: NewRequest
) -> None:
    from towline.sandbox.bwrap import bwrap_path

    picky = tmp_path / "bwrap"
    # Arguments come through a descriptor; opened anew by its path, it is read without being used up.
    picky.write_text(
        "#!/bin/sh\n"
        "tr '\\0' '\\n' < /proc/self/fd/$2 | grep -qx -e --disable-userns && exit 1\n"
        f'exec {bwrap_path()} "$@"\n'
    )
    picky.chmod(0o755)
    provider = LocalSandbox(bundle, tmp_path / "r", bwrap=str(picky))
    try:
        async with sandbox(provider, new_request()) as inside:
            assert await inside("echo hi") == "hi\n"
    finally:
        await provider.aclose()


async def test_a_tool_server_that_cannot_start_is_told_with_its_last_words(
    provider: LocalSandbox, new_request: NewRequest, tmp_path: Path
) -> None:
    base = new_request()
    request = replace(base, key="not hexadecimal")
    with pytest.raises(SandboxFailed, match="TOWLINE_SANDBOX_KEY") as caught:
        await provider.create(request)
    assert caught.value.reason == "StartFailed"
    assert "not hexadecimal" not in caught.value.message
    assert list((tmp_path / "r").glob("*.sock")) == []
    assert (await provider.create(base)).name == base.name


async def test_an_image_folder_that_is_absent_or_a_volume_that_is_a_file_is_told(
    provider: LocalSandbox, new_request: NewRequest, tmp_path: Path
) -> None:
    base = new_request()
    with pytest.raises(SandboxFailed, match="absent"):
        await provider.create(SandboxRequest(name="a", key=base.key, image=str(tmp_path / "absent")))
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxFailed, match="file"):
        await provider.create(SandboxRequest(name="b", key=base.key, volume=tmp_path / "file"))


@pytest.mark.parametrize("name", ["a/b", "n" * 120])
async def test_a_name_that_makes_no_socket_is_refused(
    provider: LocalSandbox, new_request: NewRequest, name: str
) -> None:
    with pytest.raises(SandboxFailed) as caught:
        await provider.create(SandboxRequest(name=name, key=new_request().key))
    assert caught.value.reason == "BadName"


def test_bubblewrap_is_found() -> None:
    from towline.sandbox.bwrap import bwrap_path

    assert shutil.which(bwrap_path())
    assert signal.SIGKILL
