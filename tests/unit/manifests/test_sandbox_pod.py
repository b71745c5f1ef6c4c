"""The sandbox pod, whole, and what each choice changes of it."""

from pathlib import Path, PurePosixPath

import pytest

from tests.unit.manifests.given import CONFIG, POD, RUN, changed, parsed, snapshot
from towline.api.snapshot import Sandbox
from towline.events.event import RunRef
from towline.manifests.sandbox_pod import TOOLS, sandbox_pod, sandbox_user
from towline.sandbox.bundle import MOUNT, Bundle

WHOLE = parsed("""
apiVersion: v1
kind: Pod
metadata:
  labels:
    app.kubernetes.io/name: sandbox
    app.kubernetes.io/part-of: towline
    app.kubernetes.io/managed-by: towline-operator
    towline.dev/role: sandbox
    towline.dev/run-namespace: team-a
    towline.dev/run-name: fix-a-bug
    towline.dev/run-uid: 0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0
    towline.dev/generation: "2"
  name: sandbox-0b1c2d3e4f506172-2
  namespace: towline-sandboxes
spec:
  activeDeadlineSeconds: 604800
  automountServiceAccountToken: false
  containers:
  - command:
    - /opt/towline/rt/lib/ld-linux-x86-64.so.2
    - --library-path
    - /opt/towline/rt/lib
    - /opt/towline/rt/python3
    - -I
    - -S
    - -X
    - utf8
    - -m
    - toolserver
    env:
    - name: TOWLINE_POD_IP
      valueFrom: {fieldRef: {fieldPath: status.podIP}}
    - name: TOWLINE_NODE_IP
      valueFrom: {fieldRef: {fieldPath: status.hostIP}}
    - {name: TOWLINE_LISTEN, value: "tcp:$(TOWLINE_POD_IP):8080"}
    - {name: TOWLINE_SANDBOX_NAME, value: sandbox-0b1c2d3e4f506172-2}
    - {name: TOWLINE_SANDBOX_KEY, value: c0ffee}
    - {name: TOWLINE_VOLUME, value: /sandbox}
    - {name: TOWLINE_MAX_PROCESSES, value: "512"}
    - {name: TOWLINE_FORBIDDEN, value: "tcp:10.0.0.1:443,udp:10.0.0.10:53"}
    - {name: TOWLINE_NETCHECK_SECONDS, value: "20"}
    - {name: LD_PRELOAD, value: ""}
    image: python:3.13-slim
    imagePullPolicy: IfNotPresent
    name: sandbox
    ports:
    - {containerPort: 8080, name: tools, protocol: TCP}
    resources:
      limits: {cpu: "1", ephemeral-storage: 4Gi, memory: 1Gi}
      requests: {cpu: 100m, ephemeral-storage: 64Mi, memory: 128Mi}
    securityContext:
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
      privileged: false
      readOnlyRootFilesystem: true
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
    - {mountPath: /sandbox, name: sandbox}
    - {mountPath: /tmp, name: tmp}
    - {mountPath: /opt/towline, name: tools, readOnly: true}
  dnsConfig:
    nameservers: [127.0.0.1]
  dnsPolicy: None
  enableServiceLinks: false
  hostIPC: false
  hostNetwork: false
  hostPID: false
  imagePullSecrets: []
  nodeSelector:
    towline.dev/zone: sandbox
  restartPolicy: Never
  securityContext:
    fsGroup: 280647961
    fsGroupChangePolicy: OnRootMismatch
    runAsGroup: 280647961
    runAsNonRoot: true
    runAsUser: 280647961
    seccompProfile: {type: RuntimeDefault}
  shareProcessNamespace: false
  terminationGracePeriodSeconds: 1
  tolerations: []
  volumes:
  - emptyDir: {sizeLimit: 4Gi}
    name: sandbox
  - emptyDir: {sizeLimit: 4Gi}
    name: tmp
  - image: {pullPolicy: IfNotPresent, reference: "registry.example/towline-tools:1"}
    name: tools
""")
FORBIDDEN = ("tcp:10.0.0.1:443", "udp:10.0.0.10:53")


def made(sandbox: Sandbox = POD, *, claim: str = "", config=CONFIG.sandbox, **changes):
    return sandbox_pod(RUN, snapshot(sandbox, **changes), 2, config, key="c0ffee", forbidden=FORBIDDEN, claim=claim)


def test_the_whole_pod():
    assert made() == WHOLE


def test_the_tool_server_is_started_as_the_bundle_says():
    bundle = Bundle(Path("/anywhere"), CONFIG.sandbox.loader)

    assert PurePosixPath(TOOLS) == MOUNT
    assert WHOLE["spec"]["containers"][0]["command"] == bundle.command()


def test_a_class_decides_about_image_sizes_and_processes():
    pod = made(Sandbox(image="node:22", cpu_millis=2500, memory_bytes=2**31, disk_bytes=10**9, max_processes=64))

    assert changed(WHOLE, pod) == {
        ".spec.containers[0].image": ("python:3.13-slim", "node:22"),
        ".spec.containers[0].env[6].value": ("512", "64"),
        ".spec.containers[0].resources.limits.cpu": ("1", "2500m"),
        ".spec.containers[0].resources.limits.memory": ("1Gi", "2Gi"),
        ".spec.containers[0].resources.limits.ephemeral-storage": ("4Gi", "1000000000"),
        ".spec.volumes[0].emptyDir.sizeLimit": ("4Gi", "1000000000"),
        ".spec.volumes[1].emptyDir.sizeLimit": ("4Gi", "1000000000"),
    }


def test_requests_are_never_above_the_limits():
    resources = made(Sandbox(cpu_millis=50, memory_bytes=2**26, disk_bytes=2**20))["spec"]["containers"][0]["resources"]

    assert resources["requests"] == resources["limits"]


def test_a_runtime_class_gets_its_tools_by_an_init_container():
    """gVisor cannot mount an image as a volume."""
    pod = made(Sandbox(runtime_class_name="gvisor"))

    assert pod["spec"]["runtimeClassName"] == "gvisor"
    assert pod["spec"]["volumes"][2] == {"emptyDir": {"sizeLimit": "64Mi"}, "name": "tools"}
    assert pod["spec"]["initContainers"] == parsed("""
    - command:
      - /rt/lib/ld-linux-x86-64.so.2
      - --library-path
      - /rt/lib
      - /rt/python3
      - -I
      - -S
      - -X
      - utf8
      - -c
      - import shutil; shutil.copytree('/rt', '/opt/towline/rt', symlinks=True)
      env:
      - {name: LD_PRELOAD, value: ""}
      image: registry.example/towline-tools:1
      imagePullPolicy: IfNotPresent
      name: tools
      resources:
        limits: {cpu: "1", ephemeral-storage: 64Mi, memory: 64Mi}
        requests: {cpu: 10m, ephemeral-storage: 64Mi, memory: 32Mi}
      securityContext:
        allowPrivilegeEscalation: false
        capabilities: {drop: [ALL]}
        privileged: false
        readOnlyRootFilesystem: true
      terminationMessagePolicy: FallbackToLogsOnError
      volumeMounts:
      - {mountPath: /opt/towline, name: tools}
    """)


def test_an_installation_may_choose_init_containers_for_all():
    pod = made(config=CONFIG.sandbox.model_copy(update={"delivery": "InitContainer"}))

    assert len(pod["spec"]["initContainers"]) == 1
    assert pod["spec"]["containers"] == WHOLE["spec"]["containers"]


def test_a_class_with_internet_is_labelled_for_its_policy_and_asks_public_name_servers():
    assert changed(WHOLE, made(Sandbox(network="Internet"))) == {
        ".metadata.labels.towline.dev/network": (None, "Internet"),
        ".spec.dnsConfig.nameservers[0]": ("127.0.0.1", "192.0.2.53"),
    }


@pytest.mark.parametrize(("run", "pod"), [(3600, 3660), (10_000_000, 604_800)])
def test_a_pod_never_outlives_the_run_or_the_installations_bound(run, pod):
    assert made(active_deadline_seconds=run)["spec"]["activeDeadlineSeconds"] == pod


def test_a_run_that_waits_for_people_has_only_the_installations_bound():
    assert made(active_deadline_seconds=3600, interactive=True) == WHOLE


def test_a_claim_keeps_the_workspace():
    volume = made(claim="kept")["spec"]["volumes"][0]

    assert volume == {"name": "sandbox", "persistentVolumeClaim": {"claimName": "kept"}}


def test_each_run_has_a_user_of_its_own():
    """The kernel counts a user's processes over all pods of a node, so a shared one would be a shared limit."""
    users = {sandbox_user(f"{number:032x}") for number in range(1000)}

    assert len(users) == 1000
    assert all(1_000_000 <= user <= 1_001_000_000 for user in users)


def test_a_long_run_name_is_still_a_label():
    run = RunRef("team-a", RUN.uid, "a" * 253)

    pod = sandbox_pod(run, snapshot(), 1, CONFIG.sandbox, key="c0ffee", forbidden=())

    assert all(len(value) <= 63 for value in pod["metadata"]["labels"].values())
