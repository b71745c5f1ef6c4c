"""The tool server: the first process of a sandbox, which runs the gateway's calls there.

Standard library only, and it imports nothing of towline outside this package: the same files run inside the interpreter
bundle (`sandbox/bundle.py`), in any image. The protocol is `docs/tool-server.md`; the entry is `__main__.py`.
It starts nothing by itself, dials out only to prove that it cannot, and uses no thread: signals, forks and the working
directory rely on that.
"""
