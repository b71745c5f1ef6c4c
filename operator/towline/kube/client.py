"""The requests that we make of an API server, each bounded in time and never repeated behind the caller's back.

Called by the controller's I/O and by the gateway. Objects are the dicts that stand in the JSON. Writes pass `may_write`
first, which raises when this process no longer leads.
"""

import asyncio
import builtins
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.api_client import ApiClient

from towline.kube.errors import AlreadyExists, Conflict, Refused, TooMany, Unreachable
from towline.kube.kinds import Kind, kind_of
from towline.naming import FIELD_MANAGER

Object = dict[str, Any]

TIMEOUT_SECONDS = 30.0
CONNECT_SECONDS = 5.0
PAGE = 100
"""Objects a request of a list. As Python objects a page takes ten times its JSON, and what a burst took once is never
quite given back."""
MAX_RETRY_AFTER_SECONDS = 60.0

_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_TOO_LARGE = "request is too large"


def _anybody() -> None:
    """Writes are free where there is nothing to lead."""


class Kube:
    """One API server. `field_manager` signs the writes."""

    def __init__(
        self,
        api: ApiClient,
        *,
        field_manager: str = FIELD_MANAGER,
        may_write: Callable[[], None] = _anybody,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._api = api
        self._manager = field_manager
        self._may_write = may_write
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_SECONDS)
        self.writes = 0
        """Requests that could have changed something, for the metrics."""

    @property
    def api(self) -> ApiClient:
        """What the requests go through, for the one that is no request: a port-forward."""
        return self._api

    async def aclose(self) -> None:
        await self._api.close()  # type: ignore[no-untyped-call]

    # -- reading -----------------------------------------------------------------------------------------------------

    async def get(self, kind: Kind, namespace: str | None, name: str, *, metadata_only: bool = False) -> Object | None:
        """The object as it is now, not as a cache has it; None when there is none."""
        accept = _METADATA if metadata_only else "application/json"
        found: Object | None = await self._request("GET", kind.path(namespace, name), accept=accept, missing_ok=True)
        return found

    async def served(self, kind: Kind) -> bool:
        """Whether the API server knows the kind: its CRD is installed."""
        answer = await self._request(
            "GET", kind.path(None), query={"limit": "1"}, accept=_METADATA_LIST, missing_ok=True
        )
        return answer is not None

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
    ) -> builtins.list[Object]:
        """All objects that the selectors select. Begins again, once, when a page comes too late (410)."""
        for attempt in (1, 2):
            try:
                pages = self.pages(kind, namespace, labels=labels, fields=fields, metadata_only=metadata_only)
                return [obj async for page in pages for obj in page]
            except Refused as refusal:
                if refusal.status != 410 or attempt == 2:
                    raise
        raise AssertionError("the second attempt returns or raises")

    async def pages(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
    ) -> AsyncIterator[builtins.list[Object]]:
        """The same page by page, for who need not have them all at once. Refused with status 410: begin again."""
        accept = _METADATA_LIST if metadata_only else "application/json"
        query = {"limit": str(PAGE), "labelSelector": labels, "fieldSelector": fields}
        while True:
            page = await self._request("GET", kind.path(namespace), query=query, accept=accept)
            yield page["items"] or []  # null for the metadata of no custom resource
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                return

    # -- writing -----------------------------------------------------------------------------------------------------

    async def create(self, obj: Object) -> Object:
        """The object as stored. Raises AlreadyExists, or Refused."""
        kind = kind_of(obj)
        path = kind.path(obj["metadata"].get("namespace"))
        created: Object = await self._write("POST", path, obj, query={"fieldManager": self._manager})
        return created

    async def apply(self, obj: Object, *, force: bool = True) -> Object:
        """Server-side apply: creates or changes; what we applied before and no longer name goes away."""
        applied: Object = await self._apply(obj, "", force)
        return applied

    async def apply_status(self, obj: Object) -> Object | None:
        """Applies `obj`'s status, whole. Its metadata may carry resourceVersion and uid as preconditions: Conflict.

        None when the object does not exist.
        """
        applied: Object | None = await self._apply(obj, "status", True, missing_ok=True)
        return applied

    async def patch_metadata(
        self, kind: Kind, namespace: str | None, name: str, metadata: Mapping[str, Any]
    ) -> Object | None:
        """Merges into the metadata; lists are replaced, so give resourceVersion with them. None when there is none."""
        return await self.merge(kind, namespace, name, {"metadata": dict(metadata)})

    async def merge(self, kind: Kind, namespace: str | None, name: str, patch: Object) -> Object | None:
        """Merges `patch` into the object, None when there is none. With another's uid in its metadata: Conflict."""
        query = {"fieldManager": self._manager}
        path = kind.path(namespace, name)
        patched: Object | None = await self._write("PATCH", path, patch, _MERGE, query=query, missing_ok=True)
        return patched

    async def replace(self, obj: Object) -> Object:
        """PUT of a whole object that carries its resourceVersion. Raises Conflict when it changed meanwhile."""
        kind, metadata = kind_of(obj), obj["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"])
        stored: Object = await self._write("PUT", path, obj, query={"fieldManager": self._manager})
        return stored

    async def delete(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> Object | None:
        """The object, marked for deletion, or a Status when it is gone at once; None when there was nothing to delete.

        With `uid` no other object of the same name is deleted: Conflict.
        """
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        done: Object | None = await self._write("DELETE", kind.path(namespace, name), options, missing_ok=True)
        return done

    async def _apply(self, obj: Object, subresource: str, force: bool, missing_ok: bool = False) -> Any:
        kind, metadata = kind_of(obj), obj["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"], subresource)
        query = {"fieldManager": self._manager, "force": "true" if force else "false"}
        return await self._write("PATCH", path, obj, _APPLY, query=query, missing_ok=missing_ok)

    async def _write(
        self,
        method: str,
        path: str,
        body: Object,
        content_type: str = "application/json",
        *,
        query: Mapping[str, str] | None = None,
        missing_ok: bool = False,
    ) -> Any:
        self._may_write()
        self.writes += 1
        return await self._request(
            method, path, query=query, body=body, content_type=content_type, missing_ok=missing_ok
        )

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        missing_ok: bool = False,
    ) -> Any:
        """The answer's JSON; None for 404 where that is an answer."""
        address = self._api.configuration.host + path
        if query and (text := urlencode({name: value for name, value in query.items() if value})):
            address += "?" + text
        headers: dict[str, str] = {"Accept": accept, "Content-Type": content_type, "User-Agent": self._manager}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)
        try:
            async with asyncio.timeout(self._timeout.total):
                answer = await self._api.call_api(
                    method, address, header_params=headers, body=body, _request_timeout=self._timeout
                )
                try:
                    raw: bytes = await answer.read()  # type: ignore[no-untyped-call]
                finally:
                    answer.response.release()
        except (aiohttp.ClientError, OSError, TimeoutError) as fault:
            raise Unreachable(f"{method} {path}: {fault or type(fault).__name__}") from fault
        if answer.status == 404 and missing_ok:
            return None
        if answer.status >= 400:
            raise _refusal(answer.status, answer.headers.get("Retry-After"), raw, f"{method} {path}")
        try:
            return json.loads(raw)
        except ValueError as fault:
            raise Unreachable(f"{method} {path}: the answer is no JSON") from fault


def _refusal(status: int, retry_after: str | None, raw: bytes, what: str) -> Exception:
    """The error of an answer that is none."""
    try:
        told = json.loads(raw)
        reason, message = str(told.get("reason") or ""), str(told.get("message") or "")
    except (ValueError, AttributeError):
        reason, message = "", raw[:200].decode("utf-8", "replace")
    text = f"{what}: {message}"
    if status == 409:
        return (AlreadyExists if reason == "AlreadyExists" else Conflict)(text)
    if status == 429:
        seconds = float(retry_after) if retry_after and retry_after.isdigit() else 1.0
        return TooMany(min(seconds, MAX_RETRY_AFTER_SECONDS), text)
    if status == 401 or (status >= 500 and _TOO_LARGE not in message):
        return Unreachable(f"{status} {reason or ''} {text}")
    return Refused(status, reason or "Refused", message or what)
