"""The one place that starts programs and waits for them; every other module of the cluster goes through here.

`run` is for commands that end, `wait_until` for everything that comes to be some time later. Daemons: processes.py.
"""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

POLL_SECONDS = 0.1


class Failed(Exception):
    """Something a person must look at: the message says what was run or awaited, and what was seen."""


def run(
    *command: str | Path,
    stdin: str | Path | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
) -> str:
    """Run a command to its end; returns its standard output. `stdin` is text, or the path of a file to read.

    A failure raises Failed with all output, unless `check` is off: then it returns standard output as far as it came.
    """
    try:
        with Path(os.devnull if not isinstance(stdin, Path) else stdin).open("rb") as file:
            done = subprocess.run(  # noqa: S603 - arguments are a list, never a shell's line
                [str(part) for part in command],
                input=stdin if isinstance(stdin, str) else None,
                stdin=None if isinstance(stdin, str) else file,
                capture_output=True,
                text=True,
                cwd=cwd,
                env=env,
                check=False,
            )
    except FileNotFoundError as missing:
        raise Failed(f"{missing.filename}: no such program or folder") from missing
    if check and done.returncode:
        raise Failed(f"{line(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def succeeds(*command: str | Path) -> bool:
    """Whether the command ends with status 0; a program that is not there does not."""
    try:
        run(*command)
    except Failed:
        return False
    return True


def line(command: Sequence[str | Path]) -> str:
    return " ".join(str(part) for part in command)


def wait_until(what: str, holds: Callable[[], bool], seconds: float = 60) -> float:
    """Ask until the probe answers True; returns the seconds it took. Raises Failed after `seconds`.

    The probe may raise OSError as long as the thing is not there; the last one is named when time is up. A probe that
    raises Failed ends the wait: waiting longer is no use.
    """
    begin = time.monotonic()
    last: OSError | None = None
    while (waited := time.monotonic() - begin) < seconds:
        try:
            if holds():
                return waited
        except OSError as error:
            last = error
        time.sleep(POLL_SECONDS)  # noqa: TID251 - what is waited for belongs to other processes and cannot notify us
    raise Failed(f"{what}: not so after {seconds:.0f} s" + (f" (last error: {last})" if last else ""))
