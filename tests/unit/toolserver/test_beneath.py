"""No path leads out of the workspace, however links are laid, and links that stay inside work."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from towline.toolserver.beneath import Workspace
from towline.toolserver.files import read_file, write_file
from towline.toolserver.result import ToolFault

SECRET = "secret of the host"


class Layout:
    """A workspace, and a secret beside it."""

    def __init__(self, folder: Path) -> None:
        self.inside, self.outside = folder / "workspace", folder / "outside"
        self.inside.mkdir()
        self.outside.mkdir()
        (self.outside / "secret").write_text(SECRET)
        self.workspace = Workspace(str(self.inside))

    def link(self, name: str, target: str | Path) -> None:
        (self.inside / name).parent.mkdir(parents=True, exist_ok=True)
        (self.inside / name).symlink_to(target)

    def code_of(self, path: str) -> str:
        with pytest.raises(ToolFault) as caught:
            read_file(self.workspace, path, None, None)
        assert SECRET not in caught.value.message
        return caught.value.code


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    opened = len(os.listdir("/proc/self/fd"))
    made = Layout(tmp_path)
    yield made
    made.workspace.close()
    assert len(os.listdir("/proc/self/fd")) == opened, "a resolution left descriptors open"


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../outside/secret",
        "a/../../outside/secret",
        "./../outside/secret",
        "a/b/../../../outside/secret",
        "//../outside/secret",
        "/etc/passwd",
        "/",
        "/proc/self/environ",
        "../workspace/../outside/secret",
        "../../../../../../../../etc/passwd",
    ],
)
def test_a_path_that_leaves_is_refused(layout: Layout, path: str) -> None:
    (layout.inside / "a" / "b").mkdir(parents=True)
    assert layout.code_of(path) == "PathEscapes"


@pytest.mark.parametrize(
    ("links", "path"),
    [
        ({"link": "../outside/secret"}, "link"),
        ({"link": "../outside"}, "link/secret"),
        ({"link": "/etc/passwd"}, "link"),
        ({"link": "/"}, "link/etc/passwd"),
        ({"link": ".."}, "link/outside/secret"),
        ({"a/b/link": "../../../outside/secret"}, "a/b/link"),
        ({"one": "two", "two": "three", "three": "../outside"}, "one/secret"),
        ({"d/up": "..", "e": "d/up/.."}, "e/outside/secret"),
        ({"link": "/proc/self/root"}, "link/etc/passwd"),
        ({"link": "/proc/self/cwd"}, "link"),
        ({"link": "a/../../outside/secret", "a/x": "y"}, "link"),
    ],
)
def test_a_link_that_leaves_is_refused(layout: Layout, links: dict[str, str], path: str) -> None:
    for name, target in links.items():
        layout.link(name, target)
    assert layout.code_of(path) == "PathEscapes"


def test_an_absolute_link_to_a_neighbour_with_the_same_beginning_is_refused(layout: Layout) -> None:
    neighbour = Path(f"{layout.inside}-2")
    neighbour.mkdir()
    (neighbour / "secret").write_text(SECRET)
    layout.link("link", neighbour / "secret")
    assert layout.code_of("link") == "PathEscapes"
    assert layout.code_of(str(neighbour / "secret")) == "PathEscapes"


def test_links_that_stay_inside_are_followed(layout: Layout) -> None:
    write_file(layout.workspace, "d/file", "text")
    layout.link("relative", "d/file")
    layout.link("folder", "d")
    layout.link("d/up", "..")
    layout.link("absolute", layout.inside / "d")
    for path in ("relative", "folder/file", "d/up/relative", "absolute/file", str(layout.inside / "d" / "file")):
        assert read_file(layout.workspace, path, None, None).text == "text"


def test_endless_links_are_refused(layout: Layout) -> None:
    layout.link("a", "b")
    layout.link("b", "a")
    layout.link("self", "self/x")
    assert layout.code_of("a") == "TooManyLinks"
    assert layout.code_of("self") == "TooManyLinks"


def test_dots_inside_the_workspace_are_fine(layout: Layout) -> None:
    write_file(layout.workspace, "a/file", "text")
    assert read_file(layout.workspace, "./a/../a/./file", None, None).text == "text"


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 4097, "é" * 2049])
def test_a_path_that_cannot_be_one_is_refused(layout: Layout, path: str) -> None:
    assert layout.code_of(path) == "InvalidArguments"


def test_only_regular_files_are_opened_and_nothing_waits(layout: Layout) -> None:
    os.mkfifo(layout.inside / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(layout.inside / "socket"))
        layout.link("zero", "/dev/zero")
        layout.link("to-pipe", "pipe")
        (layout.inside / "folder").mkdir()
        assert layout.code_of("pipe") == "NotRegular"
        assert layout.code_of("to-pipe") == "NotRegular"
        assert layout.code_of("socket") == "NotRegular"
        assert layout.code_of("zero") == "PathEscapes"
        assert layout.code_of("folder") == "IsDirectory"
        assert layout.code_of(".") == "IsDirectory"
        assert layout.code_of("absent") == "NotFound"
        assert layout.code_of("absent/file") == "NotFound"
    write_file(layout.workspace, "file", "x")
    assert layout.code_of("file/below") == "NotDirectory"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_a_device_inside_the_workspace_is_refused(layout: Layout) -> None:
    os.mknod(layout.inside / "zero", 0o600 | 0o020000, os.makedev(1, 5))
    assert layout.code_of("zero") == "NotRegular"


def test_a_hard_link_is_the_file_it_shares_and_writing_takes_it_apart(layout: Layout) -> None:
    os.link(layout.outside / "secret", layout.inside / "hard")
    assert read_file(layout.workspace, "hard", None, None).text == SECRET
    write_file(layout.workspace, "hard", "mine")
    assert (layout.outside / "secret").read_text() == SECRET


@pytest.mark.parametrize("path", ["../outside/new", "link/new", "dangling", "file-link", "a/../../outside/new"])
def test_nothing_is_written_outside(layout: Layout, path: str) -> None:
    layout.link("link", "../outside")
    layout.link("dangling", "../outside/new")
    layout.link("file-link", "../outside/secret")
    with pytest.raises(ToolFault, match="leads out"):
        write_file(layout.workspace, path, "gotcha")
    assert [path.name for path in layout.outside.iterdir()] == ["secret"]
    assert (layout.outside / "secret").read_text() == SECRET


def test_folders_are_made_inside_only(layout: Layout) -> None:
    layout.link("link", "../outside")
    with pytest.raises(ToolFault):
        write_file(layout.workspace, "link/a/b/c", "x")
    assert not (layout.outside / "a").exists()
    write_file(layout.workspace, "a/b/c", "x")
    assert (layout.inside / "a" / "b" / "c").read_text() == "x"


def test_a_workspace_that_was_deleted_is_made_anew(layout: Layout) -> None:
    layout.inside.rmdir()
    write_file(layout.workspace, "file", "text")
    assert (layout.inside / "file").read_text() == "text"


def test_a_folder_put_in_its_place_is_the_workspace_and_a_link_is_not(layout: Layout) -> None:
    write_file(layout.workspace, "file", "old")
    layout.inside.rename(layout.inside.with_name("old"))
    layout.inside.mkdir()
    (layout.inside / "file").write_text("new")
    assert read_file(layout.workspace, "file", None, None).text == "new"
    layout.inside.rename(layout.inside.with_name("newer"))
    layout.inside.symlink_to(layout.outside)
    assert layout.code_of("secret") == "NotDirectory"
