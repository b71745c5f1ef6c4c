"""What a run refers to, looked up in the cluster: template, provider, class and Secret, to the snapshot or a reason.

Called by `observe.py` until a run is accepted. Every lookup is live: the answer "there is none" is shown to a person.
"""

from typing import Any, TypeVar

from pydantic import ValidationError

from towline.api import resolve
from towline.api.agentrun import AgentRun
from towline.api.agenttemplate import AgentTemplate
from towline.api.common import Part, SecretRef
from towline.api.modelprovider import ModelProvider
from towline.api.sandboxclass import SandboxClass
from towline.api.snapshot import Snapshot
from towline.controller.ports import Namespaces
from towline.errors import Invalid
from towline.events.event import RunRef
from towline.events.log import EventLog
from towline.events.store import Store
from towline.kube.client import Kube, Object
from towline.kube.errors import Refused
from towline.kube.kinds import AGENT_RUN, AGENT_TEMPLATE, MODEL_PROVIDER, SANDBOX_CLASS, SECRET
from towline.kube.pod_status import Trouble

PROVIDER = "pod"
"""The one provider of sandboxes that the operator can carry out."""

M = TypeVar("M", bound=Part)


class Missing(Exception):
    """Something is not there, or does not fit. Carries what the condition says; never leaves this module's callers."""

    def __init__(self, reason: str, message: str) -> None:
        self.trouble = Trouble(reason, message)
        super().__init__(message)


async def snapshot_of(kube: Kube, store: Store, namespaces: Namespaces, run: Object) -> Snapshot:
    """The snapshot of a run as it would be stored now. Raises Missing, or StoreUnavailable."""
    metadata = run["metadata"]
    asked = _read(AgentRun, {key: value for key, value in run.items() if key != "status"}, "AgentRun")
    template = await _template(kube, namespaces, asked.spec.template_ref.name, metadata["namespace"])
    provider = await _provider(kube, template.spec.model.provider)
    class_name = asked.spec.sandbox.class_name or template.spec.sandbox_class_name
    sandbox_class = await _sandbox_class(kube, class_name)
    if asked.spec.sandbox.policy != "Never" and sandbox_class.spec.provider != PROVIDER:
        made_by = f'spec.provider is "{sandbox_class.spec.provider}", which this operator has no adapter for'
        raise Missing("InvalidSpec", f'SandboxClass/{class_name}: {made_by}; expected "{PROVIDER}"')
    allowed = provider.spec.allowed_namespaces
    if allowed is not None and metadata["namespace"] not in allowed:
        raise Missing("NotAllowed", f'ModelProvider "{provider.metadata.name}" is not for {metadata["namespace"]}')
    await _check_secret(kube, namespaces, provider.spec.secret_ref)
    source = await _source(kube, store, asked, metadata)
    try:
        return resolve.resolve(
            asked,
            template=template,
            provider=provider,
            sandbox_class=sandbox_class,
            uid=metadata["uid"],
            namespace=metadata["namespace"],
            source_uid=source,
        )
    except Invalid as fault:
        raise Missing("InvalidSpec", str(fault)) from fault


async def secret_of(kube: Kube, provider: str) -> SecretRef | None:
    """Where the API key of a run's provider is; None where it needs none. Raises Missing."""
    return (await _provider(kube, provider)).spec.secret_ref


async def _source(kube: Kube, store: Store, asked: AgentRun, metadata: Object) -> str | None:
    """UID of the run whose history this one begins with: that one is meant, whoever bears its name later."""
    wanted, namespace = asked.spec.continue_from, metadata["namespace"]
    if wanted is None:
        return None
    found = await kube.get(AGENT_RUN, namespace, wanted.name, metadata_only=True)
    if found is None or found["metadata"]["uid"] == metadata["uid"]:
        other = "" if found is None else "another run, "
        message = f'spec.continueFrom.name is "{wanted.name}"; expected {other}an AgentRun that exists in {namespace}'
        raise Missing("SourceNotFound", message)
    uid: str = found["metadata"]["uid"]
    event_log = EventLog(store, RunRef(namespace, uid, wanted.name))
    head, first = (await event_log.state()).head, await event_log.first_kept()
    if head == 0 or first is None:
        raise Missing("SourceNotFound", f'spec.continueFrom.name is "{wanted.name}", of which there is no history')
    if wanted.seq is not None and wanted.seq > head:
        last = f'at most {head}, the last event of "{wanted.name}"'
        raise Missing("InvalidSpec", f"spec.continueFrom.seq is {wanted.seq}; expected {last}")
    if wanted.seq is not None and wanted.seq < first:
        kept = f'at least {first}, the first event of "{wanted.name}" that is kept'
        raise Missing("InvalidSpec", f"spec.continueFrom.seq is {wanted.seq}; expected {kept}")
    return uid


async def _template(kube: Kube, namespaces: Namespaces, name: str, namespace: str) -> AgentTemplate:
    for place in dict.fromkeys((namespace, namespaces.system)):
        if (found := await kube.get(AGENT_TEMPLATE, place, name)) is not None:
            return _read(AgentTemplate, found, f"AgentTemplate {place}/{name}")
    where = f"{namespace} nor {namespaces.system}"
    raise Missing("TemplateNotFound", f'AgentTemplate "{name}" exists neither in {where}')


async def _provider(kube: Kube, name: str) -> ModelProvider:
    if (found := await kube.get(MODEL_PROVIDER, None, name)) is None:
        raise Missing("ProviderNotFound", f'ModelProvider "{name}" does not exist')
    return _read(ModelProvider, found, f"ModelProvider {name}")


async def _sandbox_class(kube: Kube, name: str) -> SandboxClass:
    if (found := await kube.get(SANDBOX_CLASS, None, name)) is None:
        raise Missing("SandboxClassNotFound", f'SandboxClass "{name}" does not exist')
    return _read(SandboxClass, found, f"SandboxClass {name}")


async def _check_secret(kube: Kube, namespaces: Namespaces, reference: SecretRef | None) -> None:
    """Only whether it is there: of a Secret we ask for no more than the metadata."""
    if reference is None:
        return
    try:
        found = await kube.get(SECRET, namespaces.harness, reference.name, metadata_only=True)
    except Refused:
        return  # an installation may withhold even this; then the pod's events tell
    if found is None:
        raise Missing("SecretNotFound", f'Secret "{reference.name}" does not exist in {namespaces.harness}')


def _read(model: type[M], obj: dict[str, Any], what: str) -> M:
    try:
        return model.from_wire(obj)
    except ValidationError as fault:
        told = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in fault.errors())
        raise Missing("InvalidSpec", f"{what}: {told}") from fault
