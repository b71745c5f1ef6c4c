"""Every name towline derives: Redis keys, sandbox names and keys, annotation and metadata keys.

Called by everything; nothing else in the code spells such a name. Pure.
"""

import hashlib
import hmac
from dataclasses import dataclass

GATEWAY_AUDIENCE = "towline-gateway"
"""Audience of the token a harness shows to the gateway."""

CALL_ID_META = "towline.dev/call-id"
"""Key of the call id in the `_meta` of an MCP `tools/call` request and of its result."""

OUTCOME_META = "towline.dev/outcome"
"""Key of a tool call's outcome (`ok`, `error`, `denied`, `cancelled`, `unknown`) in the `_meta` of its MCP result."""

TRUNCATED_META = "towline.dev/truncated"
"""Key in the `_meta` of an MCP result: true when the middle of the output was left out."""

CALL_ID_PATTERN = r"^[A-Za-z0-9_-]{1,40}$"
"""A call id. OpenAI-compatible providers refuse more than 40 characters; Anthropic refuses other characters."""


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The Redis keys of one run.

    The run's UID is the hash tag, so all keys of a run share one Cluster slot and one script may touch them all; the
    namespace in front lets a Redis ACL give a reader one namespace (`%R~tl:team-a:*`).
    """

    namespace: str
    uid: str

    @property
    def prefix(self) -> str:
        return f"tl:{self.namespace}:{{{self.uid}}}"

    @property
    def log(self) -> str:
        """Stream: the run's durable events; the entry id is `<seq>-0`."""
        return f"{self.prefix}:log"

    @property
    def meta(self) -> str:
        """Hash: epoch, head, incarnation, closed, cancel, totals and the guards of the scripts."""
        return f"{self.prefix}:meta"

    @property
    def spec(self) -> str:
        """String: the resolved snapshot of the run, written once."""
        return f"{self.prefix}:spec"

    @property
    def inbox(self) -> str:
        """Stream: prompts for the run; the entry id is `<n>-0`."""
        return f"{self.prefix}:inbox"

    @property
    def calls(self) -> str:
        """Hash: the gateway's ledger, one field a call id."""
        return f"{self.prefix}:calls"

    @property
    def sandbox(self) -> str:
        """Hash: the sandbox of the run as the operator recorded it."""
        return f"{self.prefix}:sandbox"

    @property
    def live(self) -> str:
        """Capped stream: deltas of the message or command in progress; never the truth."""
        return f"{self.prefix}:live"

    @property
    def notify(self) -> str:
        """Pub/sub channel: short words that say which of the keys above changed."""
        return f"{self.prefix}:notify"

    def blob(self, event_id: str) -> str:
        """String: the data of one event that is too large for its entry."""
        return f"{self.prefix}:blob:{event_id}"


def feed_key(namespace: str) -> str:
    """Stream of a namespace's lifecycle events, for indexers and dashboards."""
    return f"tl:{namespace}:feed"


def sandbox_name(uid: str, generation: int) -> str:
    """Name of a run's n-th sandbox, the first is 1; a lost sandbox is replaced by the next generation."""
    return f"sandbox-{uid.replace('-', '')[:16]}-{generation}"


def sandbox_key(installation_secret: bytes, name: str) -> str:
    """The key a sandbox proves itself with: worthless for any other sandbox, so there is nothing to steal in it."""
    return hmac.new(installation_secret, b"towline-sandbox:" + name.encode(), hashlib.sha256).hexdigest()
