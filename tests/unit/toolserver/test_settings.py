"""The tool server's settings, and the whole environment of a command."""

import pytest

from towline.toolserver.__main__ import DEFAULT_PATH, command_environment, read_settings

KEY = "ab" * 32
GIVEN = {"TOWLINE_LISTEN": "fd:5", "TOWLINE_SANDBOX_KEY": KEY}


def test_listen_and_key_are_enough() -> None:
    settings = read_settings(GIVEN)
    assert (settings.listen, settings.key, settings.volume) == ("fd:5", KEY.encode(), "/sandbox")
    assert settings.max_processes is None


def test_every_fault_is_listed_and_no_key_is_shown() -> None:
    with pytest.raises(ValueError, match="TOWLINE_LISTEN") as caught:
        read_settings(
            {
                "TOWLINE_LISTEN": "fd:x",
                "TOWLINE_SANDBOX_KEY": "short-secret",
                "TOWLINE_VOLUME": "relative",
                "TOWLINE_MAX_PROCESSES": "0",
                "TOWLINE_LIFELINE": "9",
            }
        )
    lines = str(caught.value).splitlines()
    assert len(lines) == 5
    assert "short-secret" not in str(caught.value)


def test_a_command_sees_five_variables_and_nothing_of_ours() -> None:
    hostile = {
        **GIVEN,
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "LD_PRELOAD": "/evil.so",
        "PYTHONPATH": "/evil",
        "AWS_SECRET_ACCESS_KEY": "x",
    }
    assert command_environment(hostile, "/sandbox") == {
        "PATH": DEFAULT_PATH,
        "HOME": "/sandbox/home",
        "TMPDIR": "/sandbox/tmp",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }


def test_listed_variables_are_passed_on_but_never_ours_or_the_loaders() -> None:
    environment = command_environment(
        {
            "PATH": "/bin",
            "JAVA_HOME": "/java",
            "HOME": "/root",
            "LD_PRELOAD": "/evil.so",
            "TOWLINE_SANDBOX_KEY": KEY,
            "TOWLINE_PASS_ENV": "JAVA_HOME,HOME,LD_PRELOAD,TOWLINE_SANDBOX_KEY,ABSENT",
        },
        "/v",
    )
    assert environment["JAVA_HOME"] == "/java"
    assert environment["HOME"] == "/v/home"
    assert environment["PATH"] == "/bin"
    assert set(environment) == {"PATH", "HOME", "TMPDIR", "LANG", "TERM", "JAVA_HOME"}
