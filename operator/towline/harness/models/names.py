"""A tool name as providers accept it back: both refuse a history in which a model's own invention breaks their rule."""

import re

FORBIDDEN = re.compile(r"[^a-zA-Z0-9_-]")
MAX_CHARACTERS = 64


def wire_name(name: str) -> str:
    """Only for the wire; events and the gateway see what the model wrote."""
    return FORBIDDEN.sub("_", name)[:MAX_CHARACTERS] or "_"
