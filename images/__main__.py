"""`python -m images build [NAME…]`, `tree NAME FOLDER`, `dockerfiles`: see each verb's --help."""

import argparse
import sys
import time
from pathlib import Path

from images import build, dockerfiles
from images.base import Failed

CACHE = Path.home() / ".cache" / "towline" / "images"


def main() -> int:
    arguments = parser().parse_args()
    try:
        carry_out(arguments)
    except Failed as failure:
        print(f"images {arguments.verb}: {failure}", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    text = "Build the images of towline's roles, without Docker."
    top = argparse.ArgumentParser(prog="python -m images", description=text)
    top.add_argument("--cache", type=Path, default=CACHE, help="folder of layers and archives (default: %(default)s)")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    building = verbs.add_parser("build", help="write OCI archives into the cache folder, print their paths and sizes")
    building.add_argument("name", nargs="*", metavar="NAME", help=f"of {', '.join(build.NAMES)}; default: all")
    tree = verbs.add_parser("tree", help="lay an image's root folder: what a Dockerfile copies")
    tree.add_argument("name", choices=build.NAMES)
    tree.add_argument("folder", type=Path)
    verbs.add_parser("dockerfiles", help="write images/*/Dockerfile anew")
    return top


def carry_out(arguments: argparse.Namespace) -> None:
    match arguments.verb:
        case "build":
            if unknown := set(arguments.name).difference(build.NAMES):
                raise Failed(f"no such image: {', '.join(sorted(unknown))}; there are {', '.join(build.NAMES)}")
            for name in arguments.name or build.NAMES:
                begin = time.monotonic()
                path = build.archive(name, arguments.cache)
                megabytes, seconds = path.stat().st_size / 1e6, time.monotonic() - begin
                print(f"{name:<10} {megabytes:6.1f} MB {seconds:5.1f} s  {path}", flush=True)
        case "tree":
            build.tree(arguments.name, arguments.folder, arguments.cache)
        case "dockerfiles":
            for name in build.NAMES:
                dockerfiles.write(Path(__file__).parent, name, build.config(name))


if __name__ == "__main__":
    sys.exit(main())
