"""The scripted server as a command: a provider for trying things out by hand."""

import asyncio
import sys

import aiohttp

SCRIPT = """
steps:
  - text: Hello.
    toolCalls: [{name: exec, arguments: {command: ls}}]
faults:
  1: {status: 429, retry_after: "7"}
"""


async def test_the_command_serves_a_script_with_its_faults(tmp_path):
    script = tmp_path / "script.yaml"
    script.write_text(SCRIPT)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "towline.testing.scripted_server",
        str(script),
        "--port",
        "0",
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode()
        url = line.split()[-1]
        body = {"model": "m", "messages": [{"role": "user", "content": "Go."}]}
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{url}/chat/completions", json=body) as response:
                message = (await response.json())["choices"][0]["message"]
            async with session.post(f"{url}/chat/completions", json=body) as response:
                refused = (response.status, response.headers["retry-after"])
    finally:
        process.kill()
        await process.communicate()

    assert message["content"] == "Hello."
    assert message["tool_calls"][0]["function"] == {"name": "exec", "arguments": '{"command": "ls"}'}
    assert refused == (429, "7")
