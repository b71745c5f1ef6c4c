"""What is printed when a test fails: pods, what they say of themselves, events, runs, and the logs of every role."""

from e2e.installation import HARNESSES, SANDBOXES, SYSTEM, Installation

LOG_LINES = 40
NAMESPACES = (SYSTEM, HARNESSES, SANDBOXES)


def of(installation: Installation, *namespaces: str) -> list[tuple[str, str]]:
    """Titles and texts; `namespaces` are those of the test's runs."""
    looks = [
        ("agent runs", ("get", "agentruns", "--all-namespaces", "--output=wide")),
        ("pods", ("get", "pods", "--all-namespaces", "--output=wide")),
        *((f"events of {name}", ("get", "events", f"--namespace={name}")) for name in (*namespaces, *NAMESPACES)),
        *((f"pods of {name}", ("describe", "pods", f"--namespace={name}")) for name in (HARNESSES, SANDBOXES)),
        *((f"runs of {name}", ("describe", "agentruns", f"--namespace={name}")) for name in namespaces),
    ]
    told = [(title, installation.kubectl(*line, check=False)) for title, line in looks]
    logs = {role: installation.logs(role).splitlines()[-LOG_LINES:] for role in ("operator", "gateway", "harness")}
    told += [(f"log of {role}", "\n".join(lines)) for role, lines in logs.items()]
    return [(title, text) for title, text in told if text.strip()]
