"""What the watches told last: runs by key, pods by their run's UID. Only for looking cheaply; acting needs a live look.

Filled by the handlers, by live reads and by the answers to our own writes, whichever is newest. Emptied by the sweep,
when a watch has missed a deletion.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from towline.controller.pods import pod_seen
from towline.controller.run_objects import Key, key_of, run_seen
from towline.controller.seen import Facts, PodSeen, RunSeen
from towline.events.log import RunState
from towline.naming import harness_pod_name, sandbox_name

TOMBSTONES = 2000


@dataclass(slots=True)
class Entry:
    """One run. `stale` asks for a live look: the watch lost sight of it, or never saw it.

    The status is kept as its JSON: a sixth of the memory, and none of it in the way of what a burst gives back.
    """

    head: RunSeen
    """The run without its status."""
    packed: bytes
    version: int
    finished: bool
    accepted: bool
    stale: bool = False
    facts: Facts | None = None
    state: RunState | None = None
    """As it stood at the last look."""
    harnesses: dict[str, PodSeen] = field(default_factory=dict)
    sandboxes: dict[str, PodSeen] = field(default_factory=dict)

    @property
    def run(self) -> RunSeen:
        """The run, whole."""
        return replace(self.head, status=json.loads(self.packed))

    @property
    def key(self) -> Key:
        return self.head.namespace, self.head.name

    def take(self, run: RunSeen) -> None:
        """What is known of it now."""
        self.head, self.packed = replace(run, status={}), json.dumps(run.status).encode()
        self.version, self.finished = int(run.resource_version), run.finished
        self.accepted = "resolved" in run.status


def _entry(run: RunSeen) -> Entry:
    made = Entry(run, b"", 0, False, False)
    made.take(run)
    return made


class Cache:
    def __init__(self) -> None:
        self._runs: dict[Key, Entry] = {}
        self._keys: dict[str, Key] = {}
        self._watched: dict[str, int] = {}
        """UID of a run or pod → the newest version that a watch delivered."""
        self._gone: dict[str, None] = {}
        """UIDs of pods that a watch told to be gone, the last ones: an answer that was under way knows no better."""
        self._strays: dict[str, dict[str, PodSeen]] = {}
        """Pods whose run is not known here, by the run's UID; taken in when it comes."""

    # -- reading -----------------------------------------------------------------------------------------------------

    def entry(self, key: Key) -> Entry | None:
        return self._runs.get(key)

    def key(self, uid: str) -> Key | None:
        return self._keys.get(uid)

    def all_keys(self) -> list[Key]:
        return list(self._runs)

    def entries(self) -> list[Entry]:
        return list(self._runs.values())

    def waiting(self) -> list[Key]:
        """The runs that are not accepted yet: whatever appears may be what they wait for."""
        return [key for key, entry in self._runs.items() if not entry.accepted]

    def strays(self) -> list[PodSeen]:
        """Pods without a run that is known here: of a finished run, or orphans."""
        return [pod for pods in self._strays.values() for pod in pods.values()]

    def watched(self, uid: str) -> int:
        """The newest version of an object that a watch delivered; 0 when none did."""
        return self._watched.get(uid, 0)

    def __len__(self) -> int:
        return len(self._runs)

    # -- runs --------------------------------------------------------------------------------------------------------

    def put_run(self, obj: Mapping[str, Any], *, watched: bool = False) -> bool:
        """Takes in a run unless a newer one is known; whether it was news."""
        run = run_seen(obj)
        if watched:
            self._note(run.uid, run.resource_version)
        key = key_of(obj)
        entry = self._runs.get(key)
        if entry is not None and entry.head.uid == run.uid:
            if int(run.resource_version) <= entry.version:
                return False
            entry.take(run)
            return True
        if entry is not None:
            self.drop_run(key)
        entry = self._runs[key] = _entry(run)
        self._keys[run.uid] = key
        for name, pod in self._strays.pop(run.uid, {}).items():
            _shelf(entry, pod)[name] = pod
        return True

    def lost_sight(self, key: Key) -> bool:
        """No watch shows the run any more, or none shows it rightly: only a live look counts. Whether one is needed.

        A finished run leaves the watch, which we bring about ourselves.
        """
        entry = self._runs.get(key)
        if entry is not None and not entry.finished:
            entry.stale = True
        return entry is not None and entry.stale

    def drop_run(self, key: Key) -> None:
        """The run is gone, or done with. Pods that are left of it become strays."""
        entry = self._runs.pop(key, None)
        if entry is None:
            return
        self._keys.pop(entry.head.uid, None)
        self._watched.pop(entry.head.uid, None)
        if pods := entry.harnesses | entry.sandboxes:
            self._strays[entry.head.uid] = pods

    # -- pods --------------------------------------------------------------------------------------------------------

    def put_pod(self, obj: Mapping[str, Any], *, watched: bool = False) -> Key | None:
        """Takes in a pod of ours unless a newer one is known; the key of its run if that is news to a known run."""
        pod = pod_seen(obj)
        if watched:
            self._note(pod.uid, obj["metadata"]["resourceVersion"])
        if not ours(pod) or pod.uid in self._gone:
            return None
        key = self._keys.get(pod.run_uid)
        shelf = _shelf(self._runs[key], pod) if key is not None else self._strays.setdefault(pod.run_uid, {})
        known = shelf.get(pod.name)
        if known is not None and known.version >= pod.version:
            return None
        shelf[pod.name] = pod
        return key

    def drop_pod(self, obj: Mapping[str, Any]) -> Key | None:
        """A watch says that the pod is gone. The key of its run, if known."""
        pod = pod_seen(obj)
        self._gone[pod.uid] = None
        if len(self._gone) > TOMBSTONES:
            del self._gone[next(iter(self._gone))]
        return self.forget_pod(pod)

    def forget_pod(self, pod: PodSeen) -> Key | None:
        """Takes out this pod, and not another of its name."""
        self._watched.pop(pod.uid, None)
        key = self._keys.get(pod.run_uid)
        shelf = self._strays.get(pod.run_uid, {}) if key is None else _shelf(self._runs[key], pod)
        if (known := shelf.get(pod.name)) is not None and known.uid == pod.uid:
            del shelf[pod.name]
        if key is None and not shelf:
            self._strays.pop(pod.run_uid, None)
        return key

    def set_pods(self, key: Key, harnesses: Iterable[PodSeen], sandboxes: Iterable[PodSeen]) -> None:
        """A live list of a run's pods replaces what was known, but for what is newer still."""
        if (entry := self._runs.get(key)) is not None:
            entry.harnesses = _newest(entry.harnesses, (pod for pod in harnesses if pod.uid not in self._gone))
            entry.sandboxes = _newest(entry.sandboxes, (pod for pod in sandboxes if pod.uid not in self._gone))

    def _note(self, uid: str, version: str) -> None:
        self._watched[uid] = max(self._watched.get(uid, 0), int(version))


def ours(pod: PodSeen) -> bool:
    """Whether a labelled pod is one that we made: its name follows from its labels. Others are left alone."""
    derived = harness_pod_name if pod.harness else sandbox_name
    return bool(pod.run_uid) and pod.name == derived(pod.run_uid, pod.number)


def _shelf(entry: Entry, pod: PodSeen) -> dict[str, PodSeen]:
    return entry.harnesses if pod.harness else entry.sandboxes


def _newest(known: Mapping[str, PodSeen], listed: Iterable[PodSeen]) -> dict[str, PodSeen]:
    found = {}
    for pod in listed:
        other = known.get(pod.name)
        found[pod.name] = other if other is not None and other.uid == pod.uid and other.version > pod.version else pod
    return found
