"""AgentRun objects as the API server sends them, and what of one is worth keeping in memory. Pure.

Used by the cache and by whoever reads a run. Prompts, files and foreign annotations, which may be large, are left out.
"""

from collections.abc import Mapping
from typing import Any

from towline.clock import moment
from towline.controller.seen import RunSeen
from towline.naming import DELETE_AFTER_ANNOTATION, SETTLED_ANNOTATION

_READ = (DELETE_AFTER_ANNOTATION, SETTLED_ANNOTATION)

Key = tuple[str, str]
"""Namespace and name of a run."""


def key_of(run: Mapping[str, Any]) -> Key:
    return run["metadata"]["namespace"], run["metadata"]["name"]


def run_seen(run: Mapping[str, Any]) -> RunSeen:
    metadata, spec = run["metadata"], run.get("spec") or {}
    return RunSeen(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        generation=metadata.get("generation") or 0,
        deleting_since=moment(metadata.get("deletionTimestamp")),
        finalizers=tuple(metadata.get("finalizers") or ()),
        annotations={name: value for name, value in (metadata.get("annotations") or {}).items() if name in _READ},
        suspend=bool(spec.get("suspend")),
        cancel=bool(spec.get("cancel")),
        cancel_reason=spec.get("cancelReason") or "",
        ttl_seconds=spec.get("ttlSecondsAfterFinished"),
        status=run.get("status") or {},
    )
