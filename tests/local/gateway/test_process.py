"""The gateway as a process: sealed, told by its environment, stopped by a signal."""

import asyncio
import re
import sys
from pathlib import Path


async def gateway_without_settings(**environment: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "towline.gateway",
        env={"PYTHONPATH": ":".join(sys.path), **environment},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            _, stderr = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    return process.returncode, stderr.decode()


async def test_every_thread_of_the_process_is_sealed_and_it_still_serves(world):
    gateway = await world.gateway_process()

    answer = await world.call(gateway, "exec", {"command": "echo 1"})

    assert answer.text == "1"
    threads = list(Path(f"/proc/{gateway.process.pid}/task").iterdir())
    modes = {re.search(r"Seccomp:\s+(\d)", (thread / "status").read_text())[1] for thread in threads}
    assert modes == {"2"}


async def test_it_stops_at_a_signal_with_exit_code_0(world):
    gateway = await world.gateway_process()

    assert await gateway.terminate() == 0


async def test_missing_settings_are_all_told_and_end_the_process():
    code, told = await gateway_without_settings()

    assert code == 2
    for variable in ("TOWLINE_REDIS_URL", "TOWLINE_INSTALLATION_SECRET_FILE", "TOWLINE_IDENTITY_KEY_FILE"):
        assert f"{variable} is not set" in told


async def test_a_short_secret_ends_the_process_with_the_reason(tmp_path):
    (tmp_path / "short").write_text("abc")
    (tmp_path / "key").write_text("k" * 64)

    code, told = await gateway_without_settings(
        TOWLINE_REDIS_URL="redis://127.0.0.1:1",
        TOWLINE_INSTALLATION_SECRET_FILE=str(tmp_path / "short"),
        TOWLINE_IDENTITY_KEY_FILE=str(tmp_path / "key"),
        TOWLINE_LISTEN="tcp:127.0.0.1:0",
    )

    assert code == 2
    assert "3 bytes; expected at least 32" in told


async def test_a_listen_address_of_another_form_ends_the_process_with_the_reason(tmp_path):
    (tmp_path / "secret").write_text("s" * 64)

    code, told = await gateway_without_settings(
        TOWLINE_REDIS_URL="redis://127.0.0.1:1",
        TOWLINE_INSTALLATION_SECRET_FILE=str(tmp_path / "secret"),
        TOWLINE_IDENTITY_KEY_FILE=str(tmp_path / "secret"),
        TOWLINE_LISTEN="unix:/tmp/x",
    )

    assert code == 2
    assert "expected tcp:HOST:PORT or fd:N" in told
