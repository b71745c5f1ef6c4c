"""What the pods of one run leave on their nodes, held from the first moment, so that it outlives them.

The harnesses' processes and logs, and the file in which each command of the run leaves its word.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster.layout import Cluster
from e2e.installation import HARNESSES, SANDBOXES
from e2e.kills.nodes import LOOK_SECONDS, Held, Process, empty_dir, pod_folders, process_of
from towline.naming import HARNESS_CONTAINER, harness_pod_name, sandbox_name

EFFECTS = "effects"
GO = "go"
MOST = 12
"""Pods of one kind that a run may have before something is wrong with it."""


class Traces:
    """`watch` beside the run, `close` at the end."""

    def __init__(self, cluster: Cluster, run_uid: str) -> None:
        self._run_uid = run_uid
        self._trusted, self._untrusted = cluster.node("trusted"), cluster.node("sandbox")
        self._processes: dict[int, Process] = {}
        """By epoch."""
        self._logs: dict[str, Held] = {}
        self._effects: dict[str, Held] = {}
        self._workspaces: list[Path] = []
        self._changed = asyncio.Event()

    async def watch(self) -> None:
        while True:
            for number in range(1, MOST + 1):
                if not (self._look_at_harness(number) | self._look_at_sandbox(number)):
                    break
            await asyncio.sleep(LOOK_SECONDS)

    async def harness(self, epoch: int = 1) -> Process:
        """Its process, once it runs."""
        while epoch not in self._processes:
            self._changed.clear()
            await self._changed.wait()
        return self._processes[epoch]

    async def until_done(self, word: str) -> None:
        """Until a command has left its word."""
        while word not in self.effects():
            await asyncio.sleep(LOOK_SECONDS)

    async def let_go(self) -> None:
        """End the command that waits for it, now or as soon as it begins."""
        while not [each for each in self._workspaces if each.is_dir()]:
            await asyncio.sleep(LOOK_SECONDS)
        for each in self._workspaces:
            if each.is_dir():
                (each / GO).touch()

    def effects(self) -> list[str]:
        return [word.decode() for held in self._effects.values() for word in held.read().split()]

    def log_lines(self) -> Iterator[bytes]:
        for held in self._logs.values():
            yield from held.read().splitlines()

    def close(self) -> None:
        for process in self._processes.values():
            process.close()
        for held in (*self._logs.values(), *self._effects.values()):
            held.close()

    def _look_at_harness(self, epoch: int) -> bool:
        folders = pod_folders(self._trusted, HARNESSES, harness_pod_name(self._run_uid, epoch))
        for pod_uid, folder in folders:
            log = folder / HARNESS_CONTAINER / "0.log"
            if pod_uid not in self._logs and log.exists():
                self._logs[pod_uid] = Held(log)
            if epoch not in self._processes and (pid := process_of(self._trusted, pod_uid)):
                self._processes[epoch] = Process(pid)
                self._changed.set()
        return bool(folders)

    def _look_at_sandbox(self, generation: int) -> bool:
        folders = pod_folders(self._untrusted, SANDBOXES, sandbox_name(self._run_uid, generation))
        for pod_uid, _ in folders:
            workspace = empty_dir(self._untrusted, pod_uid, "sandbox") / "workspace"
            if workspace not in self._workspaces:
                self._workspaces.append(workspace)
            if pod_uid not in self._effects and (workspace / EFFECTS).exists():
                self._effects[pod_uid] = Held(workspace / EFFECTS)
        return bool(folders)
