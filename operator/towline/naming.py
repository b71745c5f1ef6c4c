"""Every name towline derives: Redis keys, pod and sandbox names, keys, labels, annotations and metadata keys.

Called by everything; nothing else in the code spells such a name. Pure.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass

GATEWAY_AUDIENCE = "towline-gateway"
"""Audience of the token a harness shows to the gateway."""

CALL_ID_META = "towline.dev/call-id"
"""Key of the call id in the `_meta` of an MCP `tools/call` request and of its result."""

OUTCOME_META = "towline.dev/outcome"
"""Key of a tool call's outcome (`ok`, `error`, `denied`, `cancelled`, `unknown`) in the `_meta` of its MCP result."""

CANCEL_META = "towline.dev/cancel"
"""Key in the `_meta` of an MCP `tools/call` request: true means that this call shall not run, or no longer."""

UNPARSABLE_META = "towline.dev/unparsable"
"""Key in the `_meta` of a `tools/call` without arguments: what the model wrote for them, which is no JSON object."""

DISPATCHED_META = "towline.dev/dispatched"
"""Key in the `_meta` of a `tools/call` that the store had lost: `<sandbox> <instance>` of its tool server."""

SEEN_META = "towline.dev/seen"
"""Key in the `_meta` of a `tools/call`: `<seq> <incarnation>`, up to where its harness saw the log confirmed."""

RECORD_META = "towline.dev/record"
"""Key in the `_meta` of an MCP result: with it the caller puts the call's events back, should the store lose them."""

TRUNCATED_META = "towline.dev/truncated"
"""Key in the `_meta` of an MCP result: true when the middle of the output was left out."""

CALL_ID_PATTERN = r"^[A-Za-z0-9_-]{1,40}$"
"""A call id. OpenAI-compatible providers refuse more than 40 characters; Anthropic refuses other characters."""

MAX_TOOL_NAME_CHARACTERS = 200
"""What is recorded of the tool name that a model wrote. No tool of ours has a name so long."""

FIELD_MANAGER = "towline-operator"
"""Who wrote a field, in the API server's books."""

FINALIZER = "towline.dev/cleanup"
"""On a run while pods of it may exist, which lie in other namespaces, where no owner reference reaches."""

RUN_UID_LABEL = "towline.dev/run-uid"
RUN_NAME_LABEL = "towline.dev/run-name"
RUN_NAMESPACE_LABEL = "towline.dev/run-namespace"
ROLE_LABEL = "towline.dev/role"
"""harness, sandbox, gateway, operator or store."""
EPOCH_LABEL = "towline.dev/epoch"
GENERATION_LABEL = "towline.dev/generation"
NETWORK_LABEL = "towline.dev/network"
"""On a sandbox pod: the preset of its class, where that is more than nothing."""

DELETE_AFTER_ANNOTATION = "towline.dev/delete-after"
"""On a finished run: when its time to live ends, RFC 3339."""
SETTLED_ANNOTATION = "towline.dev/settled-generation"
"""On a finished run: the generation of the spec for which everything is done. Another one is a reason to look again."""

HARNESS_CONTAINER = "harness"
SANDBOX_CONTAINER = "sandbox"
"""The container that decides about its pod, whatever sidecars the cluster adds."""

MAX_LABEL_CHARACTERS = 63


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


META_PATTERN = "tl:*:meta"
"""SCAN pattern of the runs of a store; only small stores are scanned, the local ones."""


def run_of_meta_key(key: str) -> tuple[str, str] | None:
    """Namespace and UID of the run that a `meta` key belongs to; None for any other key."""
    parts = re.fullmatch(r"tl:([^:{}]+):\{([^{}]+)\}:meta", key)
    return (parts[1], parts[2]) if parts else None


NOTIFY_PATTERN = "tl:*:notify"
"""PSUBSCRIBE pattern of the notices of all runs."""


def run_of_channel(channel: bytes) -> tuple[str, str] | None:
    """Namespace and UID of the run that a notify channel belongs to; None for any other channel."""
    parts = re.fullmatch(rb"tl:([^:{}]+):\{([^{}]+)\}:notify", channel)
    return (parts[1].decode(), parts[2].decode()) if parts else None


def feed_key(namespace: str) -> str:
    """Stream of a namespace's lifecycle events, for indexers and dashboards."""
    return f"tl:{namespace}:feed"


def harness_pod_name(uid: str, epoch: int) -> str:
    """Name of the pod that holds the run under `epoch`. In its namespace only the operator can choose names."""
    return f"run-{uid.replace('-', '')[:20]}-{epoch}"


def harness_key(pod_name: str) -> str:
    """Hash: which run and epoch a harness pod speaks for."""
    return f"tl:harness:{pod_name}"


def index_key(installation: str) -> str:
    """Set: the runs that an installation has put into the store."""
    return f"tl:index:{installation}"


def run_name_label(name: str) -> str:
    """A run's name as a label value: itself, or, when too long for a label, its beginning and a digest."""
    if len(name) <= MAX_LABEL_CHARACTERS:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: MAX_LABEL_CHARACTERS - 9].rstrip('-.')}-{digest}"


def sandbox_name(uid: str, generation: int) -> str:
    """Name of a run's n-th sandbox, the first is 1; a lost sandbox is replaced by the next generation."""
    return f"sandbox-{uid.replace('-', '')[:16]}-{generation}"


def workspace_claim_name(uid: str) -> str:
    """Name of the PersistentVolumeClaim that keeps a run's workspace."""
    return f"workspace-{uid.replace('-', '')[:20]}"


def sandbox_key(installation_secret: bytes, name: str) -> str:
    """The key a sandbox proves itself with: worthless for any other sandbox, so there is nothing to steal in it."""
    return hmac.new(installation_secret, b"towline-sandbox:" + name.encode(), hashlib.sha256).hexdigest()
