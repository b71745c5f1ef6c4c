"""The CustomResourceDefinitions: models plus names, columns and selectable fields.

`python -m towline.api.crds [FOLDER]` writes one YAML file for each kind, the same bytes each time; a test asserts
that the committed files are these. Nothing imports this module at run time.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from towline.api.agentrun import AgentRun
from towline.api.agenttemplate import AgentTemplate
from towline.api.common import GROUP, VERSION
from towline.api.modelprovider import ModelProvider
from towline.api.sandboxclass import SandboxClass
from towline.api.structural import Schema, structural


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; a wide one is shown by `-o wide` only."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    description: str = ""

    def definition(self) -> Schema:
        column: Schema = {"name": self.name, "type": self.type, "jsonPath": self.path}
        if self.description:
            column["description"] = self.description
        if self.wide:
            column["priority"] = 1
        return column


@dataclass(frozen=True, slots=True)
class Kind:
    """What a CRD says beyond the schema."""

    model: type[BaseModel]
    scope: str
    columns: tuple[Column, ...]
    short_names: tuple[str, ...] = ()
    selectable: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.model.__name__

    @property
    def plural(self) -> str:
        return self.name.lower() + ("es" if self.name.endswith("s") else "s")


AGE = Column("Age", ".metadata.creationTimestamp", "date")

KINDS = (
    Kind(
        AgentRun,
        "Namespaced",
        short_names=("arun",),
        # Only unfinished runs are watched, so finished ones cost nothing.
        selectable=(".status.phase",),
        columns=(
            Column("Template", ".spec.templateRef.name"),
            Column("Phase", ".status.phase"),
            Column("Reason", '.status.conditions[?(@.type=="Succeeded")].reason'),
            Column("Turns", ".status.turns", "integer"),
            Column("Sandbox", ".status.sandbox.state"),
            AGE,
            Column("Tokens", ".status.usage.totalTokens", "integer", wide=True, description="Sent and received"),
            Column("Cost", ".status.usage.costMicroUSD", "integer", wide=True, description="Millionths of a US dollar"),
            Column("Attempt", ".status.attempt", "integer", wide=True),
            Column("Approvals", ".status.pendingApprovals", "integer", wide=True, description="Waiting for a person"),
            Column("Pod", ".status.harness.podName", wide=True),
        ),
    ),
    Kind(
        AgentTemplate,
        "Namespaced",
        columns=(
            Column("Provider", ".spec.model.provider"),
            Column("Model", ".spec.model.name"),
            Column("Sandbox", ".spec.sandboxClassName"),
            AGE,
        ),
    ),
    Kind(
        ModelProvider,
        "Cluster",
        columns=(Column("API", ".spec.api"), AGE, Column("URL", ".spec.baseURL", wide=True)),
    ),
    Kind(
        SandboxClass,
        "Cluster",
        columns=(
            Column("Provider", ".spec.provider"),
            Column("Network", ".spec.network.preset"),
            Column("Runtime", ".spec.runtimeClassName"),
            AGE,
            Column("Image", ".spec.image", wide=True),
            Column("Warm", ".spec.warmReplicas", "integer", wide=True),
        ),
    ),
)


def definition(kind: Kind) -> Schema:
    """The whole CustomResourceDefinition of `kind`."""
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root(kind.model)},
        "additionalPrinterColumns": [column.definition() for column in kind.columns],
    }
    if "status" in kind.model.model_fields:
        version["subresources"] = {"status": {}}
    if kind.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in kind.selectable]
    names: Schema = {
        "kind": kind.name,
        "listKind": f"{kind.name}List",
        "plural": kind.plural,
        "singular": kind.name.lower(),
        "categories": ["towline"],
    }
    if kind.short_names:
        names["shortNames"] = list(kind.short_names)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": kind.scope, "names": names, "versions": [version]},
    }


def _root(model: type[BaseModel]) -> Schema:
    """The object around spec and status; the server itself knows apiVersion, kind and metadata."""
    properties: Schema = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    for part in ("spec", "status"):
        if part in model.model_fields:
            properties[part] = structural(_part(model, part))
    root: Schema = {"type": "object", "description": model.__doc__, "properties": properties}
    if model.model_fields["spec"].is_required():
        root["required"] = ["spec"]
    extra = model.model_config.get("json_schema_extra")
    return root | extra if isinstance(extra, dict) else root


def _part(model: type[BaseModel], name: str) -> type[BaseModel]:
    annotation = model.model_fields[name].annotation
    kinds = [kind for kind in (annotation, *getattr(annotation, "__args__", ())) if isinstance(kind, type)]
    return next(kind for kind in kinds if issubclass(kind, BaseModel))


class _Dumper(yaml.SafeDumper):
    """Writes every value out: an anchor in a manifest is a riddle."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is yaml's
        return True


def render(kind: Kind) -> str:
    """The YAML file of `kind`."""
    body = yaml.dump(definition(kind), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return f"# Generated from operator/towline/api by `make crds`; do not edit.\n{body}"


def file_name(kind: Kind) -> str:
    return f"{GROUP}_{kind.plural}.yaml"


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0] if arguments else "crds")
    folder.mkdir(exist_ok=True)
    for kind in KINDS:
        (folder / file_name(kind)).write_text(render(kind), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
