"""A team's namespace, and runs in it, as a test writes and sees them.

Models are scripts: a run does what its steps say. Each test has a namespace of its own, and leaves nothing behind.
"""

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from e2e.cluster.shell import wait_until
from e2e.installation import HARNESSES, SANDBOXES, SYSTEM, Installation
from e2e.kubectl import Object
from towline.events.event import Event, RunRef
from towline.events.log import EventLog
from towline.events.store import Store

API = "towline.dev/v1alpha1"
GONE_SECONDS = 60
FINISHED_SECONDS = 60

Towline = Callable[..., str]
"""The command with a verb and its arguments, on a test's namespace; what it prints."""


def call(command: str, **arguments: Any) -> Object:
    """A step that runs one command in the sandbox."""
    return {"toolCalls": [{"name": "exec", "arguments": {"command": command} | arguments}]}


def say(text: str, milliseconds: int = 0) -> Object:
    """A step that ends the run; slowly, if a chunk takes some milliseconds."""
    return {"text": text, "chunkMilliseconds": milliseconds}


@dataclass
class Team:
    installation: Installation
    namespace: str
    made: list[tuple[str, str]] = field(default_factory=list)
    """Kinds without a namespace, which have to be deleted one by one."""

    def run(self, name: str, *steps: Object, tools: Sequence[str] = ("exec",), **spec: Any) -> "Run":
        """Applies a run, and a template and a provider for it alone."""
        self.installation.kubectl.apply(*self.manifests(name, *steps, tools=tools, **spec), namespace=self.namespace)
        return Run(self, name)

    def manifests(self, name: str, *steps: Object, tools: Sequence[str] = ("exec",), **spec: Any) -> list[Object]:
        template = spec.setdefault("templateRef", {"name": name})["name"]
        return [
            *self.kinds(template, *steps, tools=tools),
            {"apiVersion": API, "kind": "AgentRun", "metadata": {"name": name}, "spec": {"prompt": "go"} | spec},
        ]

    def kinds(self, template: str, *steps: Object, tools: Sequence[str] = ("exec",), **spec: Any) -> list[Object]:
        """A template, and its provider, which follows the script."""
        provider = f"{self.namespace}-{template}"
        self.made.append(("modelprovider", provider))
        scripted = {"api": "Scripted", "scripted": {"steps": list(steps)}}
        works = {"model": {"provider": provider}, "tools": list(tools)} | spec
        return [
            {"apiVersion": API, "kind": "ModelProvider", "metadata": {"name": provider}, "spec": scripted},
            {"apiVersion": API, "kind": "AgentTemplate", "metadata": {"name": template}, "spec": works},
        ]

    def sandbox_class(self, **spec: Any) -> str:
        name = f"{self.namespace}-{secrets.token_hex(2)}"
        self.made.append(("sandboxclass", name))
        self.installation.kubectl.apply(
            {"apiVersion": API, "kind": "SandboxClass", "metadata": {"name": name}, "spec": spec}
        )
        return name

    def enter(self) -> None:
        self.installation.kubectl("create", "namespace", self.namespace)

    def leave(self) -> None:
        kubectl = self.installation.kubectl
        kubectl("delete", "namespace", self.namespace, "--ignore-not-found", "--wait=false")
        for kind, name in dict.fromkeys(self.made):
            kubectl("delete", kind, name, "--ignore-not-found")


@dataclass
class Run:
    team: Team
    name: str

    @property
    def installation(self) -> Installation:
        return self.team.installation

    def get(self) -> Object | None:
        return self.installation.kubectl.find("agentrun", self.team.namespace, self.name)

    @property
    def uid(self) -> str:
        found = self.get()
        assert found is not None, f"there is no run {self.name}"
        return str(found["metadata"]["uid"])

    @property
    def status(self) -> Object:
        return dict((self.get() or {}).get("status") or {})

    def condition(self, kind: str) -> Object:
        return next((each for each in self.status.get("conditions") or () if each["type"] == kind), {})

    def outcome(self) -> tuple[str, str]:
        """Phase and reason."""
        return self.status.get("phase", ""), self.condition("Succeeded").get("reason", "")

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait(self, condition: str = "Finished", seconds: int = FINISHED_SECONDS) -> "Run":
        """By `kubectl wait`, as everybody does."""
        namespace = f"--namespace={self.team.namespace}"
        line = ("wait", f"agentrun/{self.name}", namespace, f"--for=condition={condition}", f"--timeout={seconds}s")
        self.installation.kubectl(*line)
        return self

    def until(self, kind: str, status: str, reason: str = "", seconds: float = FINISHED_SECONDS) -> Object:
        """Until a condition has a status and a reason; returns it."""

        def holds() -> bool:
            told = self.condition(kind)
            return told.get("status") == status and reason in ("", told["reason"])

        wait_until(f"run {self.name}: {kind}={status} {reason}", holds, seconds)
        return self.condition(kind)

    def until_event(self, kind: str, count: int = 1, seconds: float = FINISHED_SECONDS) -> Event:
        """Until the log has so many events of a type; returns the last of them."""

        def there() -> bool:
            return len([event for event in self.events() if event.type == kind]) >= count

        wait_until(f"run {self.name}: {kind}", there, seconds)
        return [event for event in self.events() if event.type == kind][-1]

    def until_nothing_is_left(self, uid: str, seconds: float = GONE_SECONDS) -> None:
        kubectl, labels = self.installation.kubectl, f"towline.dev/run-uid={uid}"

        def nothing() -> bool:
            found = self.get()
            gone = found is None or found["metadata"]["uid"] != uid
            return gone and not any(kubectl.items("pods", each, labels) for each in (HARNESSES, SANDBOXES))

        wait_until(f"run {self.name}: nothing is left", nothing, seconds)

    # -- changing ----------------------------------------------------------------------------------------------------

    def patch(self, **spec: Any) -> None:
        self.installation.kubectl.patch("agentrun", self.team.namespace, self.name, spec)

    def delete(self, *options: str) -> None:
        self.installation.kubectl.delete("agentrun", self.team.namespace, self.name, *options)

    # -- its pods ----------------------------------------------------------------------------------------------------

    def harness(self, epoch: int = 1) -> Object | None:
        return self._pod(HARNESSES, f"towline.dev/epoch={epoch}")

    def sandbox(self, generation: int = 1) -> Object | None:
        return self._pod(SANDBOXES, f"towline.dev/generation={generation}")

    def _pod(self, namespace: str, label: str) -> Object | None:
        labels = f"towline.dev/run-uid={self.uid},{label}"
        return next(iter(self.installation.kubectl.items("pods", namespace, labels)), None)

    def owns(self, pod: Object) -> bool:
        """Whether it is a pod of this run."""
        return bool(pod["metadata"]["labels"]["towline.dev/run-uid"] == self.uid)

    # -- its events --------------------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """The whole log, as any consumer reads it."""
        ref = RunRef(self.team.namespace, self.uid, self.name)
        return asyncio.run(_read(self.installation.store_url(), ref))

    def types(self) -> list[str]:
        return [event.type for event in self.events()]

    def results(self) -> list[Mapping[str, Any]]:
        """Of its tool calls, in order."""
        return [event.payload for event in self.events() if event.type == "agent.tool_result"]

    def said(self) -> list[str]:
        """The results' texts."""
        return ["".join(part["text"] for part in result["content"]) for result in self.results()]


async def _read(url: str, run: RunRef) -> list[Event]:
    store = Store.connect(url)
    try:
        return await EventLog(store, run).all()
    finally:
        await store.aclose()


def assert_whole(events: Sequence[Event]) -> None:
    """Gap-free from 1, with exactly one terminal event, the last; and one result for each tool use."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    ends = [event.type for event in events if event.type in ("run.completed", "run.failed", "run.cancelled")]
    assert len(ends) == 1
    assert events[-1].type == ends[0]
    ids = {kind: [e.payload["call_id"] for e in events if e.type == f"agent.tool_{kind}"] for kind in ("use", "result")}
    assert len(set(ids["use"])) == len(ids["use"])
    assert sorted(ids["use"]) == sorted(ids["result"])


def system_pod(installation: Installation, role: str) -> str:
    """Name of a running pod of operator, gateway or store."""
    pods = installation.kubectl.items("pods", SYSTEM, f"towline.dev/role={role}")
    return str(next(pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"))


def as_text(obj: Any) -> str:
    return json.dumps(obj, ensure_ascii=False)
