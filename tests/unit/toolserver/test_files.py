"""Reading by lines, replacing at once, editing exactly."""

import os
import stat
from pathlib import Path

import pytest

from towline.toolserver.beneath import Workspace
from towline.toolserver.files import READ_LIMIT, edit_file, read_file, write_file
from towline.toolserver.result import ToolFault


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(str(tmp_path))


def fault_of(call: object, *arguments: object) -> ToolFault:
    with pytest.raises(ToolFault) as caught:
        call(*arguments)  # type: ignore[operator]
    return caught.value


@pytest.mark.parametrize(
    ("content", "offset", "limit", "text"),
    [
        ("a\nb\nc\n", None, None, "a\nb\nc\n"),
        ("a\nb\nc\n", 2, None, "b\nc\n"),
        ("a\nb\nc\n", 2, 1, "b\n"),
        ("a\nb\nc", 3, 5, "c"),
        ("a\nb\nc", 1, 2, "a\nb\n"),
        ("\n\n\n", 2, 1, "\n"),
        ("", 1, 1, ""),
        ("", None, None, ""),
    ],
)
def test_lines_are_counted_from_one(
    workspace: Workspace, content: str, offset: int | None, limit: int | None, text: str
) -> None:
    write_file(workspace, "f", content)
    result = read_file(workspace, "f", offset, limit)
    assert (result.text, result.total_bytes, result.truncated) == (text, len(text), False)


@pytest.mark.parametrize(("content", "offset", "lines"), [("a\nb\n", 3, 2), ("a\nb", 3, 2), ("", 2, 0), ("a", 9, 1)])
def test_a_line_beyond_the_end_is_told_with_the_number_of_lines(
    workspace: Workspace, content: str, offset: int, lines: int
) -> None:
    write_file(workspace, "f", content)
    fault = fault_of(read_file, workspace, "f", offset, None)
    assert fault.code == "OutOfRange"
    assert f"has {lines} lines" in fault.message


def test_bytes_that_are_no_text_are_replaced(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\xff\x00b")
    assert read_file(workspace, "f", None, None).text == "a\ufffd\ufffdb"


def test_a_large_file_shows_its_ends_and_its_size(workspace: Workspace, tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.write(b"begin")
        file.truncate(10 * 1024**3)
        file.seek(-3, os.SEEK_END)
        file.write(b"end")
    result = read_file(workspace, "huge", None, None)
    assert result.total_bytes == 10 * 1024**3
    assert result.truncated
    assert len(result.text) <= 40_000
    assert result.text.startswith("begin")
    assert result.text.endswith("end")
    assert fault_of(read_file, workspace, "huge", 5, 1).code == "TooLarge"


def test_writing_keeps_an_existing_mode_and_leaves_no_temporary_file(workspace: Workspace, tmp_path: Path) -> None:
    write_file(workspace, "run.sh", "one")
    assert stat.S_IMODE((tmp_path / "run.sh").stat().st_mode) == 0o644
    (tmp_path / "run.sh").chmod(0o750)
    write_file(workspace, "run.sh", "two")
    assert stat.S_IMODE((tmp_path / "run.sh").stat().st_mode) == 0o750
    write_file(workspace, "run.sh", "three", 0o700)
    assert stat.S_IMODE((tmp_path / "run.sh").stat().st_mode) == 0o700
    assert os.listdir(tmp_path) == ["run.sh"]


def test_a_reader_that_has_the_old_file_open_keeps_it(workspace: Workspace, tmp_path: Path) -> None:
    write_file(workspace, "f", "old")
    with (tmp_path / "f").open() as reader:
        write_file(workspace, "f", "new and longer")
        assert reader.read() == "old"
    assert (tmp_path / "f").read_text() == "new and longer"


def test_what_is_no_regular_file_is_not_replaced(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    os.mkfifo(tmp_path / "p")
    assert fault_of(write_file, workspace, "d", "x").code == "IsDirectory"
    assert fault_of(write_file, workspace, ".", "x").code == "IsDirectory"
    assert fault_of(write_file, workspace, "p", "x").code == "NotRegular"
    assert sorted(os.listdir(tmp_path)) == ["d", "p"]


def test_an_edit_needs_exactly_one_match_or_replace_all(workspace: Workspace, tmp_path: Path) -> None:
    write_file(workspace, "f", "aXbXc")
    assert fault_of(edit_file, workspace, "f", "Y", "", False).code == "NoMatch"
    assert fault_of(edit_file, workspace, "f", "X", "-", False).code == "NotUnique"
    assert edit_file(workspace, "f", "aX", "a-", False).text == "Replaced 1 occurrence in f."
    assert edit_file(workspace, "f", "X", "X", True).text == "Replaced 1 occurrence in f."
    write_file(workspace, "f", "XX")
    assert edit_file(workspace, "f", "X", "yy", True).text == "Replaced 2 occurrences in f."
    assert (tmp_path / "f").read_text() == "yyyy"


def test_an_edit_leaves_bytes_that_are_no_text_as_they_are(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xff\r\nold\x00")
    edit_file(workspace, "f", "old", "new", False)
    assert (tmp_path / "f").read_bytes() == b"\xff\r\nnew\x00"


def test_an_edit_cannot_make_or_touch_a_huge_file(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * (READ_LIMIT // 2))
    assert fault_of(edit_file, workspace, "f", "x", "xxxx", True).code == "TooLarge"
    with (tmp_path / "g").open("wb") as file:
        file.truncate(READ_LIMIT + 1)
    assert fault_of(edit_file, workspace, "g", "x", "y", True).code == "TooLarge"
    assert fault_of(edit_file, workspace, "absent", "x", "y", True).code == "NotFound"
