"""Manifest files to models, with errors that a person can act on.

Called by the local launcher and the CLI. `load` reads everything, then raises one Invalid with a sentence for each
fault: file, line, document, object, field, what was seen and what was expected. The status in a manifest is ignored,
as kubectl does.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_origin

from pydantic import ValidationError

from towline.api.agentrun import AgentRun
from towline.api.agenttemplate import AgentTemplate
from towline.api.common import API_VERSION
from towline.api.faults import seen, sentence
from towline.api.fields import listed, nearest, type_at
from towline.api.modelprovider import ModelProvider
from towline.api.sandboxclass import SandboxClass
from towline.api.yaml_documents import Document, parse
from towline.errors import Invalid

Resource = AgentRun | AgentTemplate | ModelProvider | SandboxClass

MAX_FILE_BYTES = 4 * 1024 * 1024
"""Manifests are small; what is larger is another kind of file."""

_KINDS: dict[str, type[Resource]] = {
    "AgentRun": AgentRun,
    "AgentTemplate": AgentTemplate,
    "ModelProvider": ModelProvider,
    "SandboxClass": SandboxClass,
}


@dataclass(frozen=True, slots=True)
class Documents:
    """What the files hold, each kind in the order it was read."""

    runs: tuple[AgentRun, ...] = ()
    templates: tuple[AgentTemplate, ...] = ()
    providers: tuple[ModelProvider, ...] = ()
    classes: tuple[SandboxClass, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """One `--set`: a path into the AgentRun, and the text behind the equals sign."""

    path: tuple[str, ...]
    text: str

    @property
    def place(self) -> str:
        """How an error names it; without the value, which stands on the command line anyway."""
        return f"--set {'.'.join(self.path)}"


def load(paths: Sequence[Path], assignments: Sequence[str] = (), run: str | None = None) -> Documents:
    """All objects in the files; `assignments` (`spec.prompt=…`) change the AgentRun called `run`, or the only one.

    Raises Invalid with the faults of all files: first those of YAML, then, if there are none, those of the objects.
    """
    problems: list[str] = []
    documents: list[Document] = []
    for path in paths:
        try:
            found = list(parse(_text(path), str(path)))
        except Invalid as fault:
            problems += fault.problems
            continue
        if not found:
            problems.append(f"{path}: holds no document")
        documents += found
    if problems:
        raise Invalid(*problems)
    return read(documents, assignments, run)


def read(documents: Sequence[Document], assignments: Sequence[str] = (), run: str | None = None) -> Documents:
    """The objects in documents that are parsed already; otherwise like `load`."""
    changes = _assignments(assignments)
    runs = [each for each in documents if _says(each, "kind") == "AgentRun" and run in (None, _name(each))]
    if changes and len(runs) != 1:
        wanted = "one AgentRun" if run is None else f"the AgentRun {run}"
        raise Invalid(f"--set changes {wanted}, and the files hold {len(runs) or 'none'}")
    problems: list[str] = []
    resources: list[Resource] = []
    first: dict[tuple[str, str | None, str], Document] = {}
    for document in documents:
        try:
            resource = _resource(document, changes if document in runs else [])
        except Invalid as fault:
            problems += fault.problems
            continue
        before = first.setdefault((resource.kind, resource.metadata.namespace, resource.metadata.name), document)
        if before is not document:
            where = f"{before.source}:{before.line(())} (document {before.number})"
            problems.append(f"{_place(document)}: the same object is defined at {where}")
        resources.append(resource)
    if problems:
        raise Invalid(*problems)
    return Documents(
        runs=tuple(each for each in resources if isinstance(each, AgentRun)),
        templates=tuple(each for each in resources if isinstance(each, AgentTemplate)),
        providers=tuple(each for each in resources if isinstance(each, ModelProvider)),
        classes=tuple(each for each in resources if isinstance(each, SandboxClass)),
    )


def set_values(run: dict[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """A copy of the raw AgentRun with each `path=value` put in; nothing is validated but the form.

    The value is text where the field is text, so `spec.prompt=3` needs no quotes, and YAML elsewhere. An empty value
    takes a field that is no text away. Items of lists cannot be named.
    """
    return _changed(run, _assignments(assignments))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as fault:
        raise Invalid(f"{path}: cannot be read: {fault.strerror}") from fault
    if len(raw) > MAX_FILE_BYTES:
        raise Invalid(f"{path}: is larger than {MAX_FILE_BYTES} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise Invalid(f"{path}: is not UTF-8 text: byte {fault.start} is 0x{raw[fault.start]:02x}") from fault


def _resource(document: Document, changes: Sequence[Assignment]) -> Resource:
    if not isinstance(document.value, dict):
        raise Invalid(f"{_place(document)}: is {seen((), document.value)}; expected a mapping with apiVersion and kind")
    kind = _says(document, "kind")
    if kind not in _KINDS:
        near = nearest(kind, _KINDS) if isinstance(kind, str) else None
        hint = f'; did you mean "{near}"?' if near else ""
        what = f"kind is {seen((), kind)}" if "kind" in document.value else "kind is missing"
        raise Invalid(f"{_place(document, ('kind',))}: {what}; expected {listed(list(_KINDS), 'or')}{hint}")
    model = _KINDS[kind]
    value = _changed(document.value, changes) if changes else document.value
    value = {"metadata": {}} | {key: member for key, member in value.items() if key != "status"}
    problems: list[tuple[int, str]] = []
    if "apiVersion" not in value:
        problems.append((0, f"{_place(document)}: apiVersion is missing; expected {API_VERSION}"))
    try:
        resource = model.from_wire(_without_nulls(value))
    except ValidationError as found:
        for fault in found.errors(include_url=False):
            place = next((each.place for each in changes if fault["loc"][: len(each.path)] == each.path), None)
            place = place or _place(document, fault["loc"])
            problems.append((document.line(fault["loc"]), f"{place}: {sentence(fault, model)}"))
    if problems:
        raise Invalid(*(text for _, text in sorted(problems, key=lambda each: each[0])))
    return resource


def _place(document: Document, path: Sequence[str | int] = ()) -> str:
    """`run.yaml:12: document 2, AgentRun/hello`."""
    place = f"{document.source}:{document.line(path)}: document {document.number}"
    kind = _says(document, "kind")
    if kind in _KINDS:
        name = _name(document)
        place += f", {kind}/{name}" if isinstance(name, str) and len(name) <= 253 else f", {kind} without a name"
    return place


def _says(document: Document, key: str) -> Any:
    return document.value.get(key) if isinstance(document.value, dict) else None


def _name(document: Document) -> Any:
    metadata = _says(document, "metadata")
    return metadata.get("name") if isinstance(metadata, dict) else None


def _without_nulls(value: Any) -> Any:
    """An API server drops a null where none is allowed, so `limits:` with nothing below it means no limits.

    A scripted call's arguments are the tool's business and stay as they are.
    """
    if isinstance(value, dict):
        return {
            key: member if key == "arguments" else _without_nulls(member)
            for key, member in value.items()
            if member is not None
        }
    return [_without_nulls(member) for member in value] if isinstance(value, list) else value


def _assignments(texts: Sequence[str]) -> list[Assignment]:
    problems, changes = [], []
    for text in texts:
        name, equals, value = text.partition("=")
        path = tuple(name.split("."))
        if not equals or not all(path) or len(path) < 2 or path[0] not in ("spec", "metadata"):
            problems.append(f"--set {name}: expected PATH=VALUE, such as spec.limits.maxTurns=3")
        changes.append(Assignment(path, value))
    if problems:
        raise Invalid(*problems)
    return changes


def _changed(run: dict[str, Any], changes: Sequence[Assignment]) -> dict[str, Any]:
    changed: dict[str, Any] = copy.deepcopy(run)
    problems: list[str] = []
    for change in changes:
        try:
            _put(changed, change)
        except Invalid as fault:
            problems += fault.problems
    if problems:
        raise Invalid(*problems)
    return changed


def _put(run: dict[str, Any], change: Assignment) -> None:
    target: dict[str, Any] = run
    for step in change.path[:-1]:
        below = target.get(step)
        if below is not None and not isinstance(below, dict):
            raise Invalid(f"{change.place}: {step} is {seen((), below)}, and only fields of a mapping can be set")
        target[step] = below or {}
        target = target[step]
    declared = type_at(AgentRun, change.path)
    is_text = declared in (str, None) or get_origin(declared) is Literal
    target[change.path[-1]] = change.text if is_text else _value(change)


def _value(change: Assignment) -> Any:
    try:
        documents = list(parse(change.text, change.place))
    except Invalid as fault:
        raise Invalid(f"{change.place}: the value is not YAML") from fault
    return documents[0].value if documents else None
