"""What bubblewrap is told: everything unshared, and only what is named exists inside."""

from pathlib import Path

import pytest

from towline.errors import SandboxFailed
from towline.sandbox.bundle import Bundle
from towline.sandbox.mounts import environment, files, image_root, namespaces
from towline.sandbox.provider import SandboxRequest

BUNDLE = Bundle(Path("/cache/toolserver-1"), "ld-linux-x86-64.so.2")
REQUEST = SandboxRequest(name="s", key="ab" * 32, volume=Path("/runs/s"), env={"LOCALE": "de"}, max_processes=9)


def pairs(arguments: list[str], flag: str) -> dict[str, str]:
    """Target to source of every mount made by `flag`."""
    return {arguments[at + 2]: arguments[at + 1] for at, word in enumerate(arguments) if word == flag}


def test_no_namespace_is_shared_and_no_privilege_kept() -> None:
    flags = namespaces(nested=False)
    for flag in ("--unshare-all", "--unshare-user", "--new-session", "--as-pid-1", "--clearenv"):
        assert flag in flags
    assert flags[flags.index("--cap-drop") + 1] == "ALL"
    assert "--disable-userns" in flags
    assert "--disable-userns" not in namespaces(nested=True)


def test_only_the_volume_is_writable() -> None:
    arguments = files(REQUEST, BUNDLE, Path("/run/etc"))
    assert pairs(arguments, "--bind") == {"/sandbox": "/runs/s"}
    assert arguments[-2:] == ["--remount-ro", "/"]
    visible = pairs(arguments, "--ro-bind")
    assert visible["/opt/towline"] == "/cache/toolserver-1"
    assert visible["/etc/passwd"] == "/run/etc/passwd"
    assert not {"/", "/etc", "/home", "/root", "/run", "/var"} & set(visible)


def test_without_a_volume_the_workspace_is_memory() -> None:
    arguments = files(SandboxRequest(name="s", key="ab" * 32), BUNDLE, Path("/run/etc"))
    assert pairs(arguments, "--bind") == {}
    assert arguments[arguments.index("/sandbox") - 1] == "--tmpfs"


def test_an_image_folder_becomes_the_root_around_our_own_mounts(tmp_path: Path) -> None:
    for folder in ("bin", "dev", "proc", "tmp", "sandbox", "opt/tool", "opt/towline"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "lib").symlink_to("usr/lib")
    arguments = image_root(tmp_path)
    assert pairs(arguments, "--ro-bind") == {"/bin": f"{tmp_path}/bin", "/opt/tool": f"{tmp_path}/opt/tool"}
    assert pairs(arguments, "--symlink") == {"/lib": "usr/lib"}


def test_the_environment_tells_the_tool_server_what_to_pass_on() -> None:
    variables = environment(REQUEST, 7)
    assert variables["TOWLINE_LISTEN"] == "fd:7"
    assert variables["TOWLINE_MAX_PROCESSES"] == "9"
    assert variables["TOWLINE_PASS_ENV"] == "LOCALE"
    assert variables["LOCALE"] == "de"


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONPATH", "TOWLINE_LISTEN", "GLIBC_TUNABLES"])
def test_a_variable_that_would_act_on_the_tool_server_is_refused(name: str) -> None:
    request = SandboxRequest(name="s", key="ab" * 32, env={name: "x"})
    with pytest.raises(SandboxFailed, match=name):
        environment(request, 7)


def test_a_request_shows_no_key_when_printed() -> None:
    assert "abab" not in repr(REQUEST)


def test_the_bundle_is_started_through_its_own_loader() -> None:
    assert BUNDLE.command() == [
        "/opt/towline/rt/lib/ld-linux-x86-64.so.2",
        "--library-path",
        "/opt/towline/rt/lib",
        "/opt/towline/rt/python3",
        *("-I", "-S", "-X", "utf8", "-m", "toolserver"),
    ]
