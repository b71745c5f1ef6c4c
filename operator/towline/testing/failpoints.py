"""`python -m towline.testing.failpoints --list`: the names of all failpoints, one a line, for scripts.

`--explain` adds what is true at each. The points themselves stand in `towline/failpoints.py`.
"""

import argparse

from towline.failpoints import POINTS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m towline.testing.failpoints", description="Towline's failpoints.")
    shown = parser.add_mutually_exclusive_group(required=True)
    shown.add_argument("--list", action="store_true", help="the names, one a line")
    shown.add_argument("--explain", action="store_true", help="with what is true at each")
    given = parser.parse_args()
    for name, moment in POINTS.items():
        print(f"{name:<28}{moment}" if given.explain else name)


if __name__ == "__main__":
    main()
