"""The harness pod, whole, and what each choice changes of it."""

from tests.unit.manifests.given import CONFIG, RUN, changed, parsed, snapshot
from towline.api.common import SecretRef
from towline.manifests.harness_pod import harness_pod

WHOLE = parsed("""
apiVersion: v1
kind: Pod
metadata:
  labels:
    app.kubernetes.io/name: harness
    app.kubernetes.io/part-of: towline
    app.kubernetes.io/managed-by: towline-operator
    towline.dev/role: harness
    towline.dev/run-namespace: team-a
    towline.dev/run-name: fix-a-bug
    towline.dev/run-uid: 0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0
    towline.dev/epoch: "3"
  name: run-0b1c2d3e4f5061728394-3
  namespace: towline-harness
spec:
  automountServiceAccountToken: false
  containers:
  - env:
    - name: TOWLINE_REDIS_URL
      valueFrom:
        secretKeyRef: {key: url, name: towline-store}
    - {name: TOWLINE_RUN_NAMESPACE, value: team-a}
    - {name: TOWLINE_RUN_UID, value: 0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0}
    - {name: TOWLINE_EPOCH, value: "3"}
    - {name: TOWLINE_GATEWAY_URL, value: "http://towline-gateway.towline-system.svc:8080/mcp"}
    - {name: TOWLINE_GATEWAY_TOKEN_FILE, value: /var/run/secrets/towline.dev/gateway/token}
    - {name: TOWLINE_MODEL_KEY_FILE, value: /var/run/secrets/towline.dev/model/key}
    - {name: TOWLINE_LOG_LEVEL, value: info}
    image: registry.example/towline-harness:1
    imagePullPolicy: IfNotPresent
    name: harness
    resources:
      limits: {memory: 256Mi}
      requests: {cpu: 25m, memory: 64Mi}
    securityContext:
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
      privileged: false
      readOnlyRootFilesystem: true
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
    - {mountPath: /tmp, name: tmp}
    - {mountPath: /var/run/secrets/towline.dev/gateway, name: gateway-token, readOnly: true}
    - {mountPath: /var/run/secrets/towline.dev/model, name: model-key, readOnly: true}
  enableServiceLinks: false
  hostIPC: false
  hostNetwork: false
  hostPID: false
  imagePullSecrets:
  - name: pull
  nodeSelector:
    towline.dev/zone: trusted
  restartPolicy: Never
  securityContext:
    fsGroup: 65532
    runAsGroup: 65532
    runAsNonRoot: true
    runAsUser: 65532
    seccompProfile: {type: RuntimeDefault}
  serviceAccountName: towline-harness
  shareProcessNamespace: false
  terminationGracePeriodSeconds: 10
  tolerations:
  - {key: towline.dev/trusted, operator: Equal, value: "true", effect: NoSchedule}
  volumes:
  - emptyDir: {medium: Memory, sizeLimit: 16Mi}
    name: tmp
  - name: gateway-token
    projected:
      defaultMode: 0440
      sources:
      - serviceAccountToken: {audience: towline-gateway, expirationSeconds: 600, path: token}
  - name: model-key
    secret:
      defaultMode: 0440
      items:
      - {key: api-key, path: key}
      secretName: anthropic
""")
KEY = SecretRef(name="anthropic")


def test_the_whole_pod():
    assert harness_pod(RUN, snapshot(), 3, CONFIG.harness, model_key=KEY) == WHOLE


def test_a_provider_without_a_key_mounts_none():
    pod = harness_pod(RUN, snapshot(), 3, CONFIG.harness, model_key=None)

    assert "model" not in str(pod)


def test_a_runs_deadline_is_the_kubelets_a_minute_later():
    pod = harness_pod(RUN, snapshot(active_deadline_seconds=600), 3, CONFIG.harness, model_key=KEY)

    assert changed(WHOLE, pod) == {".spec.activeDeadlineSeconds": (None, 660)}


def test_a_run_that_waits_for_people_has_no_deadline_that_counts_the_waiting():
    pod = harness_pod(RUN, snapshot(active_deadline_seconds=600, interactive=True), 3, CONFIG.harness, model_key=KEY)

    assert pod == WHOLE


def test_the_next_epoch_is_another_pod_of_the_same_run():
    pod = harness_pod(RUN, snapshot(), 4, CONFIG.harness, model_key=KEY)

    assert changed(WHOLE, pod) == {
        ".metadata.labels.towline.dev/epoch": ("3", "4"),
        ".metadata.name": ("run-0b1c2d3e4f5061728394-3", "run-0b1c2d3e4f5061728394-4"),
        ".spec.containers[0].env[3].value": ("3", "4"),
    }


def test_no_word_of_the_run_reaches_the_pod():
    """What its author wrote (prompt, files) is the harness' to read from the store, not everybody's who sees pods."""
    loud = snapshot(system_prompt="a system prompt").model_copy(update={"prompt": "a secret prompt"})

    assert harness_pod(RUN, loud, 3, CONFIG.harness, model_key=KEY) == WHOLE
