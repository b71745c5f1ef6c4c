"""The whole environment of gateway and harness, by value."""

from pathlib import Path

from towline.events.event import RunRef
from towline.local.commands import Files, gateway_environment, harness_environment
from towline.settings import GatewaySettings, HarnessSettings, read

FILES = Files(Path("/r"))


def test_the_gateway_is_told_where_things_are_and_no_secret() -> None:
    environment = gateway_environment(
        redis_url="unix:///r/valkey.sock", listener=7, secret=Path("/s/secret"), files=FILES, log_level="info"
    )
    assert environment == {
        "PATH": "/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        "TOWLINE_REDIS_URL": "unix:///r/valkey.sock",
        "TOWLINE_LISTEN": "fd:7",
        "TOWLINE_INSTALLATION_SECRET_FILE": "/s/secret",
        "TOWLINE_IDENTITY_KEY_FILE": "/r/identity-key",
        "TOWLINE_LOG_LEVEL": "info",
    }
    assert read(GatewaySettings, environment).listen == "fd:7"


def test_the_harness_is_told_its_run_and_epoch_and_where_its_credentials_are() -> None:
    environment = harness_environment(
        redis_url="unix:///r/valkey.sock",
        run=RunRef("default", "u-1", "hello"),
        epoch=3,
        gateway_url="http://127.0.0.1:9/mcp",
        files=FILES,
        has_model_key=True,
        trust={"SSL_CERT_FILE": "/ca.pem"},
        log_level="debug",
    )
    assert environment == {
        "PATH": "/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        "SSL_CERT_FILE": "/ca.pem",
        "TOWLINE_REDIS_URL": "unix:///r/valkey.sock",
        "TOWLINE_RUN_NAMESPACE": "default",
        "TOWLINE_RUN_UID": "u-1",
        "TOWLINE_EPOCH": "3",
        "TOWLINE_GATEWAY_URL": "http://127.0.0.1:9/mcp",
        "TOWLINE_GATEWAY_TOKEN_FILE": "/r/gateway-token-3",
        "TOWLINE_LOG_LEVEL": "debug",
        "TOWLINE_MODEL_KEY_FILE": "/r/model-key",
    }
    assert read(HarnessSettings, environment).epoch == 3
