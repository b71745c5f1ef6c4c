"""Which run of a cluster is meant, and where; without a cluster."""

import argparse
import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.unit.cli.cluster_api import serving, write_kubeconfig
from towline.cli import cluster, tail
from towline.cli.__main__ import main, parser
from towline.cli.cluster import Place
from towline.cli.target import prompt_command
from towline.errors import Invalid, StoreUnavailable
from towline.settings import LocalSettings

SETTINGS = LocalSettings(kubeconfig=Path("/home/me/config"))
KNOWN = [
    {"metadata": {"name": "chat", "uid": "11112222-0000"}},
    {"metadata": {"name": "b", "uid": "11113333-0000"}},
]


def parsed(*words: str) -> argparse.Namespace:
    return parser().parse_args(["tail", "run", *words])


def test_without_an_option_of_a_cluster_this_machine_is_meant() -> None:
    assert cluster.place(parsed(), SETTINGS) is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-n", "team"], Place(Path("/home/me/config"), None, "team", "towline-system", None)),
        (["--context", "prod"], Place(Path("/home/me/config"), "prod", None, "towline-system", None)),
        (["--system-namespace", "ours"], Place(Path("/home/me/config"), None, None, "ours", None)),
        (
            ["--kubeconfig", "/k", "--redis-url", "redis://r"],
            Place(Path("/k"), None, None, "towline-system", "redis://r"),
        ),
    ],
)
def test_any_option_of_a_cluster_means_a_cluster(words: list[str], expected: Place) -> None:
    assert cluster.place(parsed(*words), SETTINGS) == expected


@pytest.mark.parametrize(
    "words",
    [
        ["-n", "team"],
        ["--kubeconfig", "/k", "--context", "prod", "-n", "team", "--redis-url", "redis://r"],
        ["-n", "team", "--system-namespace", "ours"],
        ["--store", "/s"],
    ],
)
def test_what_to_type_to_talk_to_a_run_names_the_same_place(words: list[str]) -> None:
    assert prompt_command("run", parsed(*words)) == f'towline prompt {" ".join(words)} run "…"'


def test_a_folder_and_a_cluster_do_not_go_together() -> None:
    with pytest.raises(Invalid, match="--store"):
        cluster.place(parsed("-n", "team", "--store", "/s"), SETTINGS)


@pytest.mark.parametrize(("wanted", "name"), [("chat", "chat"), ("11113", "b"), ("11112222-0000", "chat")])
def test_a_run_is_found_by_its_name_or_by_the_beginning_of_its_uid(wanted: str, name: str) -> None:
    assert cluster.find(KNOWN, "team", wanted).name == name


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("1111", "beginning of several runs: 11112222-0000, 11113333-0000"),
        ("111", "there are: chat, b"),
        ("chta", "no run 'chta' in namespace team; did you mean 'chat'"),
    ],
)
def test_what_is_not_exactly_one_run_is_an_error(wanted: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        cluster.find(KNOWN, "team", wanted)


def test_the_url_of_the_store_is_turned_to_the_forwarded_port() -> None:
    inside = "redis://:s3cret@towline-store.towline-system.svc:6379/0"

    assert cluster.at_port(inside, 40123) == "redis://:s3cret@127.0.0.1:40123/0"


def test_without_the_packages_for_a_cluster_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("towline.kube")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    monkeypatch.setitem(sys.modules, "kubernetes.aio", None)

    with pytest.raises(Invalid, match=r"towline\[operator\]"):
        asyncio.run(tail.tail(parsed("-n", "team"), SETTINGS))


def test_a_kubeconfig_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--kubeconfig", "/no/such/file"]) == 2
    assert "/no/such/file" in capsys.readouterr().err


@contextmanager
def answering(status: int) -> Iterator[str]:
    """The address of an API server that has one answer to everything."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"reason": "Word", "message": "and why"}'
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


VERBS = [["ls"], ["tail", "x", "-f"], ["prompt", "x", "Hello?"], ["cancel", "x"]]


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
@pytest.mark.parametrize(("status", "code"), [(429, 3), (500, 3), (401, 3), (403, 2), (422, 2)])
def test_the_exit_code_tells_an_api_server_that_cannot_now_from_one_that_refuses(
    tmp_path: Path, words: list[str], status: int, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with answering(status) as server:
        write_kubeconfig(tmp_path / "config", server)
        assert main([*words, "--kubeconfig", str(tmp_path / "config")]) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("towline: the API server of the cluster: ")


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_an_api_server_that_does_not_answer_is_no_end_of_a_run(
    tmp_path: Path, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    with answering(200) as server:
        write_kubeconfig(tmp_path / "config", server)

    assert main([*words, "--kubeconfig", str(tmp_path / "config")]) == 3

    assert capfd.readouterr().err.startswith("towline: the API server of the cluster: ")


async def test_a_bundled_store_whose_pod_is_away_is_a_store_that_does_not_answer_now(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        api.has("chat")
        place = Place(api.kubeconfig, None, None, "towline-system", None)
        with pytest.raises(StoreUnavailable, match="the event store of namespace towline-system does not run"):
            async with cluster.found(place, "chat"):
                pass

        api.has_store = False
        with pytest.raises(Invalid, match="has no event store of its own; use --redis-url"):
            async with cluster.found(place, "chat"):
                pass
