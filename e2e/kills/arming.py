"""How a process on the cluster is told of its failpoint, with the product as it is: its pod gets one more variable.

The operator makes the harnesses' pods, so for them the API server adds it, by a policy that reads the run's name. Of
gateway and operator a pod beside those of the Deployment is made. Pure.
"""

from copy import deepcopy

from e2e.installation import HARNESSES
from e2e.kubectl import Object
from towline.naming import EPOCH_LABEL, HARNESS_CONTAINER, ROLE_LABEL, RUN_NAME_LABEL, RUN_NAMESPACE_LABEL

NAME = "kills"
VARIABLE = "TOWLINE_FAILPOINT"
ARMED_LABEL = "towline.dev/kills"
"""On an armed gateway: so that a Service can lead to it alone."""


def policy() -> list[Object]:
    """Of the runs in namespaces that begin with NAME, the harnesses tell in their logs what is in the run's log; and
    the first one of a run with a name of `points.run_name` is armed, its successors are not."""
    label = "object.metadata.labels['{}']".format
    name = label(RUN_NAME_LABEL)
    armed = f"{label(EPOCH_LABEL)} == '1' && ({name}.startsWith('fp-') || {name}.startsWith('tell-'))"
    failpoint = "variables.parts[0] == 'tell' ? 'tell' : variables.parts[1] + ':' + variables.parts[2]"
    known = _variable("TOWLINE_LOG_LEVEL", "'debug'")
    env = f"variables.armed ? [{known}, {_variable(VARIABLE, failpoint)}] : [{known}]"
    container = f"Object.spec.containers{{name: '{HARNESS_CONTAINER}', env: {env}}}"
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    group = {"apiVersion": "admissionregistration.k8s.io/v1"}
    return [
        group
        | {
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": NAME},
            "spec": {
                "failurePolicy": "Fail",
                "reinvocationPolicy": "Never",
                "matchConstraints": {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": HARNESSES}},
                    "objectSelector": {"matchLabels": {ROLE_LABEL: "harness"}},
                    "resourceRules": [pods],
                },
                "matchConditions": [
                    {"name": "ours", "expression": f"{label(RUN_NAMESPACE_LABEL)}.startsWith('{NAME}-')"}
                ],
                "variables": [
                    {"name": "parts", "expression": f"{name}.split('-')"},
                    {"name": "armed", "expression": armed},
                ],
                "mutations": [
                    {
                        "patchType": "ApplyConfiguration",
                        "applyConfiguration": {
                            "expression": f"Object{{spec: Object.spec{{containers: [{container}]}}}}"
                        },
                    }
                ],
            },
        },
        group
        | {
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": NAME},
            "spec": {"policyName": NAME},
        },
    ]


def _variable(name: str, expression: str) -> str:
    return f"Object.spec.containers.env{{name: '{name}', value: {expression}}}"


def armed_pod(deployment: Object, failpoint: str, tag: str) -> Object:
    """A pod as the Deployment's, that is not started again once it has died; the Deployment does not count it."""
    template = deepcopy(deployment["spec"]["template"])
    metadata, spec = deployment["metadata"], template["spec"]
    (container,) = spec["containers"]
    container["env"].append({"name": VARIABLE, "value": failpoint})
    labels = template["metadata"]["labels"] | {ARMED_LABEL: "armed"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": template["metadata"]
        | {"labels": labels, "name": f"{metadata['name']}-armed-{tag}", "namespace": metadata["namespace"]},
        "spec": spec | {"restartPolicy": "Never"},
    }
