"""What a person asked `towline run` for, checked and resolved: the snapshot of one run, and its model's key.

Called by `cli/run.py`. It reads the manifest files and nothing else; it starts nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from towline.api import defaults
from towline.api.agentrun import AgentRun
from towline.api.documents import Documents, load
from towline.api.resolve import find_class, find_template, resolve
from towline.api.snapshot import Snapshot
from towline.errors import Invalid
from towline.local.models import choose_model
from towline.settings import LocalSettings

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Order:
    """One run, ready to be launched."""

    snapshot: Snapshot
    model_key: str | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    """What a person should know before it starts."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A run, and the kinds that its files hold."""

    run: AgentRun
    documents: Documents

    @property
    def namespace(self) -> str:
        return self.run.metadata.namespace or DEFAULT_NAMESPACE


def read_manifest(files: Sequence[Path], assignments: Sequence[str], name: str | None) -> Manifest:
    """The run in `files`; `name` picks one of several. Raises Invalid with every fault found."""
    documents = load(files, assignments, name)
    run = _pick(documents.runs, name, files)
    _check(run)
    return Manifest(run, documents)


def take_order(manifest: Manifest, settings: LocalSettings, *, uid: str, source_uid: str | None = None) -> Order:
    """The run, resolved. `source_uid` is the run that its spec.continueFrom names. Raises Invalid."""
    run, documents, namespace = manifest.run, manifest.documents, manifest.namespace
    template = find_template(run.spec.template_ref.name, namespace, [*documents.templates, defaults.TEMPLATE])
    class_name = run.spec.sandbox.class_name or template.spec.sandbox_class_name
    sandbox_class = find_class(class_name, [*documents.classes, defaults.SANDBOX_CLASS])
    choice = choose_model(template, documents.providers, settings)
    snapshot = resolve(
        run,
        template=choice.template,
        provider=choice.provider,
        sandbox_class=defaults.as_local(sandbox_class),
        uid=uid,
        namespace=namespace,
        source_uid=source_uid,
    )
    no_network = ""
    if snapshot.sandbox.network != "None":
        no_network = (
            f"SandboxClass/{class_name}: a sandbox on this machine has no network, whatever network.preset says"
        )
    return Order(snapshot, choice.key, tuple(filter(None, (choice.note, no_network))))


def _pick(runs: Sequence[AgentRun], name: str | None, files: Sequence[Path]) -> AgentRun:
    names = ", ".join(run.metadata.name for run in runs)
    if name is not None:
        found = [run for run in runs if run.metadata.name == name]
        if len(found) != 1:
            how_many = "no AgentRun" if not found else f"{len(found)} AgentRuns"
            raise Invalid(f"--name {name}: {how_many} of that name; the files hold: {names or 'none'}")
        return found[0]
    if not runs:
        raise Invalid(f"{', '.join(map(str, files))}: no AgentRun; expected one document of kind AgentRun")
    if len(runs) > 1:
        raise Invalid(f"the files hold {len(runs)} AgentRuns; pick one with --name: {names}")
    return runs[0]


def _check(run: AgentRun) -> None:
    """What the kind allows and one run on a laptop cannot do."""
    problems = [
        f"AgentRun/{run.metadata.name}: spec.{switch} is true; `towline run` cannot {verb}"
        for switch, wanted, verb in (
            ("suspend", run.spec.suspend, "hold a run back"),
            ("cancel", run.spec.cancel, "start a run that is cancelled"),
        )
        if wanted
    ]
    if problems:
        raise Invalid(*problems)
