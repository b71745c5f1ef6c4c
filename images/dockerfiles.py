"""The Dockerfiles, written from the roles: `python -m images dockerfiles`, for people who have Docker.

They run the same code in their first stage, so the image's content does not depend on the way it was built.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from images.oci import Config

BUILDER = "debian:13.3-slim"
TEMPLATE = """\
# Written by `python -m images dockerfiles`. Build from the top of the repository:
#   docker build -f images/{name}/Dockerfile -t towline-{name} .
FROM {builder} AS build
RUN apt-get update \\
 && apt-get install -y --no-install-recommends ca-certificates mmdebstrap python3 python3-pip
WORKDIR /src
COPY pyproject.toml requirements.lock ./
COPY images images
COPY operator operator
RUN python3 -m images tree {name} /image

FROM scratch
COPY --from=build /image /
{config}
"""


def write(folder: Path, name: str, config: Config) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "Dockerfile").write_text(text(name, config))


def text(name: str, config: Config) -> str:
    return TEMPLATE.format(name=name, builder=BUILDER, config="\n".join(instructions(config))).rstrip("\n") + "\n"


def instructions(config: Config) -> Iterator[str]:
    if config.env:
        yield "ENV " + " ".join(f"{name}={value}" for name, value in sorted(config.env.items()))
    if config.user:
        yield f"USER {config.user}"
    if config.entrypoint:
        yield f"ENTRYPOINT {json.dumps(list(config.entrypoint))}"
