"""The claim that keeps a workspace, whole, and when there is one."""

from tests.unit.manifests.given import CONFIG, RUN, parsed, snapshot
from towline.api.snapshot import Sandbox, Volume
from towline.manifests.makers import PodMakers
from towline.manifests.workspace_claim import workspace_claim

KEPT = Sandbox(provider="pod", retain="Suspend", volume=Volume(storage_class_name="fast", size_bytes=5 * 2**30))
WHOLE = parsed("""
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  labels:
    app.kubernetes.io/name: sandbox
    app.kubernetes.io/part-of: towline
    app.kubernetes.io/managed-by: towline-operator
    towline.dev/role: sandbox
    towline.dev/run-namespace: team-a
    towline.dev/run-name: fix-a-bug
    towline.dev/run-uid: 0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0
  name: workspace-0b1c2d3e4f5061728394
  namespace: towline-sandboxes
spec:
  accessModes: [ReadWriteOnce]
  resources:
    requests:
      storage: 5Gi
  storageClassName: fast
  volumeMode: Filesystem
""")


def test_the_whole_claim() -> None:
    assert workspace_claim(RUN, snapshot(KEPT), "towline-sandboxes") == WHOLE


def test_no_storage_class_is_the_clusters_default() -> None:
    plain = KEPT.model_copy(update={"volume": Volume(size_bytes=2**30)})

    claim = workspace_claim(RUN, snapshot(plain), "towline-sandboxes")

    assert claim is not None
    assert "storageClassName" not in claim["spec"]


def test_there_is_one_only_where_the_run_asks_and_the_class_can() -> None:
    for sandbox in (Sandbox(retain="Suspend"), KEPT.model_copy(update={"retain": "Delete"})):
        assert workspace_claim(RUN, snapshot(sandbox), "towline-sandboxes") is None


def test_the_pod_mounts_the_claim_that_was_made_for_it() -> None:
    makers = PodMakers(CONFIG, b"s" * 32)

    pod, claim = makers.sandbox_pod(RUN, snapshot(KEPT), 3), makers.workspace_claim(RUN, snapshot(KEPT))

    assert claim is not None
    volume = {"name": "sandbox", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
    assert pod["spec"]["volumes"][0] == volume
    assert "emptyDir" in makers.sandbox_pod(RUN, snapshot(), 3)["spec"]["volumes"][0]
