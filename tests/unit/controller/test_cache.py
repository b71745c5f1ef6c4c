"""The cache: the newest word counts, wherever it comes from, and nothing of a former run of the same name stays."""

from typing import Any

from towline.controller.cache import Cache
from towline.controller.pods import pod_seen
from towline.naming import harness_pod_name

KEY = ("team", "hello")


def run(uid: str = "aaaa", version: int = 1, **more: Any) -> dict[str, Any]:
    metadata = {"namespace": "team", "name": "hello", "uid": uid, "resourceVersion": str(version), "generation": 1}
    return {"metadata": metadata, "spec": {"prompt": "x" * 1000}, **more}


def pod(uid: str = "p1", version: int = 1, run_uid: str = "aaaa", name: str | None = None) -> dict[str, Any]:
    labels = {"towline.dev/role": "harness", "towline.dev/run-uid": run_uid, "towline.dev/epoch": "1"}
    metadata = {"name": name or harness_pod_name(run_uid, 1), "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata | {"labels": labels}, "status": {"phase": "Running"}}


def test_only_news_is_news() -> None:
    cache = Cache()

    assert cache.put_run(run(version=9))
    assert not cache.put_run(run(version=9)), "as when a watch brings back what we wrote"
    assert not cache.put_run(run(version=8))
    assert cache.put_run(run(version=10)), "9 is less than 10"


def test_a_run_of_the_same_name_replaces_the_former_one_and_its_pods() -> None:
    cache = Cache()
    cache.put_run(run("aaaa"))
    cache.put_pod(pod())

    assert cache.put_run(run("bbbb", version=1))

    entry = cache.entry(KEY)
    assert entry is not None
    assert (entry.run.uid, entry.harnesses) == ("bbbb", {})
    assert [each.uid for each in cache.strays()] == ["p1"]
    assert (cache.key("aaaa"), cache.key("bbbb")) == (None, KEY)


def test_a_pod_that_comes_before_its_run_is_kept_for_it() -> None:
    cache = Cache()
    assert cache.put_pod(pod()) is None

    cache.put_run(run())

    entry = cache.entry(KEY)
    assert entry is not None
    assert list(entry.harnesses) == [harness_pod_name("aaaa", 1)]
    assert cache.strays() == []


def test_the_end_of_a_former_pod_does_not_take_the_one_of_the_same_name() -> None:
    cache = Cache()
    cache.put_run(run())
    cache.put_pod(pod("new", version=5))

    cache.drop_pod(pod("old", version=9))

    entry = cache.entry(KEY)
    assert entry is not None
    assert [each.uid for each in entry.harnesses.values()] == ["new"]


def test_a_labelled_pod_whose_name_does_not_follow_is_not_ours() -> None:
    cache = Cache()
    cache.put_run(run())

    assert cache.put_pod(pod(name="debugger"), watched=True) is None

    entry = cache.entry(KEY)
    assert entry is not None
    assert entry.harnesses == {}
    assert cache.watched("p1") == 1, "and yet its watch is alive"


def test_large_things_are_not_kept() -> None:
    cache = Cache()
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 100_000, "towline.dev/delete-after": "t"}
    obj = run()
    obj["metadata"]["annotations"] = annotations
    cache.put_run(obj)

    entry = cache.entry(KEY)

    assert entry is not None
    assert entry.run.annotations == {"towline.dev/delete-after": "t"}
    assert "xxxx" not in repr(entry.run)


def test_a_run_that_left_the_watch_asks_for_a_live_look_unless_it_has_finished() -> None:
    cache = Cache()
    cache.put_run(run())
    assert cache.lost_sight(KEY)

    done = {"conditions": [{"type": "Finished", "status": "True", "reason": "Completed"}]}
    cache.put_run(run(version=2, status=done))
    entry = cache.entry(KEY)
    assert entry is not None
    entry.stale = False

    assert not cache.lost_sight(KEY)


def test_an_answer_that_was_under_way_does_not_bring_back_a_pod_that_a_watch_told_to_be_gone() -> None:
    cache = Cache()
    cache.put_run(run())
    cache.put_pod(pod(version=1), watched=True)
    cache.drop_pod(pod(version=3))

    assert cache.put_pod(pod(version=2)) is None
    cache.set_pods(KEY, [pod_seen(pod(version=2))], [])

    entry = cache.entry(KEY)
    assert entry is not None
    assert entry.harnesses == {}
