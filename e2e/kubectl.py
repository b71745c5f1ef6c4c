"""kubectl, as a user has it: run, read as JSON, apply, and what happens in a namespace.

Tests see the cluster through this and through nothing else.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryFile
from typing import IO, Any

from e2e.cluster.shell import Failed, run, wait_until

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kubectl:
    """`program` with the credentials of a cluster's administrator."""

    program: Path
    kubeconfig: Path
    cache: Path
    """The API's description, which kubectl would keep in the user's home."""

    def __call__(self, *arguments: str | Path, stdin: str | None = None, check: bool = True) -> str:
        return run(*self.line(*arguments), stdin=stdin, check=check)

    def refused(self, *arguments: str | Path, stdin: str | None = None) -> str:
        """The message of a command that must fail."""
        try:
            said = self(*arguments, stdin=stdin)
        except Failed as failure:
            return str(failure)
        raise AssertionError(f"kubectl {' '.join(map(str, arguments))} was not refused: {said}")

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--output=json"))

    def items(self, kind: str, namespace: str | None = None, labels: str = "") -> list[Object]:
        where = (f"--namespace={namespace}",) if namespace else ("--all-namespaces",)
        found: list[Object] = self.json("get", kind, *where, *((f"--selector={labels}",) if labels else ()))["items"]
        return found

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        text = self("get", kind, name, f"--namespace={namespace}", "--ignore-not-found", "--output=json")
        found: Object | None = json.loads(text) if text.strip() else None
        return found

    def apply(self, *objects: Object, namespace: str = "default") -> str:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        return self("apply", f"--namespace={namespace}", "--filename=-", stdin=json.dumps(listed))

    def patch(self, kind: str, namespace: str, name: str, spec: Object) -> None:
        change = json.dumps({"spec": spec})
        self("patch", kind, name, f"--namespace={namespace}", "--type=merge", f"--patch={change}")

    def delete(self, kind: str, namespace: str, name: str, *options: str) -> None:
        self("delete", kind, name, f"--namespace={namespace}", "--ignore-not-found", *options)

    # -- what happens ------------------------------------------------------------------------------------------------

    @contextmanager
    def recorded(self, namespace: str, plural: str = "pods", group: str = "/api/v1") -> Iterator["Recorded"]:
        """Every change of a namespace's objects while the block runs, also of those that are gone again."""
        path = f"{group}/namespaces/{namespace}/{plural}"
        moment = json.loads(self("get", "--raw", path))["metadata"]["resourceVersion"]
        watch = self.line("get", "--raw", f"{path}?watch=1&resourceVersion={moment}&timeoutSeconds=3600")
        with TemporaryFile("w+") as lines, Popen(watch, stdout=lines) as process:  # noqa: S603 - no shell
            try:
                yield Recorded(lines)
            finally:
                process.kill()

    def until(
        self,
        what: str,
        kind: str,
        namespace: str,
        name: str,
        holds: Callable[[Object | None], object],
        seconds: float = 60,
    ) -> Object:
        """The object, once `holds` is true of it; None stands for one that is not there."""
        seen: list[Object | None] = [None]

        def look() -> bool:
            seen[0] = self.find(kind, namespace, name)
            return bool(holds(seen[0]))

        wait_until(f"{kind} {namespace}/{name} {what}", look, seconds)
        return seen[0] or {}

    def line(self, *arguments: str | Path) -> list[str]:
        ours = (f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.cache}")
        return [str(self.program), *ours, *map(str, arguments)]


@dataclass(frozen=True, slots=True)
class Recorded:
    lines: IO[str]

    def objects(self) -> list[Object]:
        """As they were after each change so far."""
        self.lines.seek(0)
        told = [json.loads(line) for line in self.lines.read().splitlines(keepends=True) if line.endswith("\n")]
        assert all(event["type"] != "ERROR" for event in told), told
        return [event["object"] for event in told]


class Tunnel:
    """A port of this machine that leads to a Service's `port`: `kubectl port-forward`, started when needed."""

    def __init__(self, kubectl: Kubectl, namespace: str, target: str, port: int) -> None:
        self._line = kubectl.line("port-forward", f"--namespace={namespace}", target, f":{port}", "--address=127.0.0.1")
        self._process: Popen[str] | None = None
        self._port = 0

    @property
    def port(self) -> int:
        if self._process is None or self._process.poll() is not None:
            self._process = Popen(self._line, stdout=PIPE, stderr=PIPE, text=True)  # noqa: S603 - no shell
            assert self._process.stdout is not None
            said = self._process.stdout.readline()  # "Forwarding from 127.0.0.1:40123 -> 6379"
            if not said:
                assert self._process.stderr is not None
                raise Failed(f"{' '.join(self._line)}: {self._process.stderr.read()}")
            self._port = int(said.split(" -> ")[0].rpartition(":")[2])
        return self._port

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
