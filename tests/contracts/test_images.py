"""An image holds a part of the package: what that part imports must be in it, long before anybody builds one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.roles import PACKAGE, ROLES, SHARED, Role


def files_of(role: Role) -> Iterator[Path]:
    for part in (*SHARED, *role.parts):
        place = PACKAGE / part
        yield from sorted(place.rglob("*.py")) if place.is_dir() else [place]


def imported(file: Path) -> Iterator[str]:
    """Names of modules and packages right below `towline` that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "towline":
            names = [f"towline.{each.name}" for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("towline."))


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_the_image_of_a_role_has_every_part_of_the_package_that_it_imports(role: Role) -> None:
    held = {part.removesuffix(".py") for part in (*SHARED, *role.parts)}

    lacking = {
        f"{file.relative_to(PACKAGE)} imports {name}"
        for file in files_of(role)
        if file.suffix == ".py"
        for name in imported(file)
        if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()
        if name not in held
    }

    assert lacking == set()
