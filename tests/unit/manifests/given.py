"""A run and an installation, for the builders."""

from typing import Any

import yaml

from towline.api.snapshot import Model, Sandbox, Snapshot
from towline.events.event import RunRef
from towline.manifests.config import PodConfig

RUN = RunRef("team-a", "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0", "fix-a-bug")

CONFIG = PodConfig.from_json("""
{
  "systemNamespace": "towline-system",
  "harness": {
    "namespace": "towline-harness",
    "image": {"reference": "registry.example/towline-harness:1"},
    "imagePullSecrets": ["pull"],
    "serviceAccount": "towline-harness",
    "placement": {
      "nodeSelector": {"towline.dev/zone": "trusted"},
      "tolerations": [{"key": "towline.dev/trusted", "operator": "Equal", "value": "true", "effect": "NoSchedule"}]
    },
    "gatewayUrl": "http://towline-gateway.towline-system.svc:8080/mcp",
    "requests": {"cpu": "25m", "memory": "64Mi"},
    "limits": {"memory": "256Mi"}
  },
  "sandbox": {
    "namespace": "towline-sandboxes",
    "image": {"reference": "python:3.13-slim"},
    "tools": {"reference": "registry.example/towline-tools:1"},
    "placement": {"nodeSelector": {"towline.dev/zone": "sandbox"}},
    "requests": {"cpu": "100m", "memory": "128Mi", "disk": "64Mi"},
    "limits": {"cpu": 1, "memory": "1Gi", "disk": "4Gi"},
    "resolvers": ["192.0.2.53"]
  }
}
""")


POD = Sandbox(provider="pod")
"""What a class that leaves everything open resolves to."""


def snapshot(sandbox: Sandbox = POD, **changes: Any) -> Snapshot:
    """The run's snapshot, with the changes of a test."""
    model = Model(api="AnthropicMessages", provider="default", name="claude")
    return Snapshot(
        namespace=RUN.namespace, name=RUN.name, uid=RUN.uid, prompt="go", model=model, sandbox=sandbox, **changes
    )


def parsed(text: str) -> Any:
    """A manifest as `kubectl get -o yaml` shows it."""
    return yaml.safe_load(text)


def places(value: Any, path: str = "") -> dict[str, Any]:
    """Every leaf by its path: what a test of one difference compares."""
    if isinstance(value, dict):
        return {key: leaf for name, each in value.items() for key, leaf in places(each, f"{path}.{name}").items()}
    if isinstance(value, list):
        return {key: leaf for n, each in enumerate(value) for key, leaf in places(each, f"{path}[{n}]").items()}
    return {path: value}


def changed(before: Any, after: Any) -> dict[str, tuple[Any, Any]]:
    """Path to the value before and after, for what differs; None where there is none."""
    old, new = places(before), places(after)
    paths = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    return {path: (old.get(path), new.get(path)) for path in paths}
