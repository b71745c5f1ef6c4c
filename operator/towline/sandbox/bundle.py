"""Builds the interpreter bundle: CPython with its own loader and libraries, and the tool server, in one folder.

Called by the local launcher and by image builds, with a folder to cache it in. The result runs on any Linux of the
machine's architecture, in an image that holds nothing: it is started through its own loader. It is made from the
running interpreter (a venv's base) and takes nothing else but the `strip` program, if there is one.
"""

import hashlib
import importlib.util
import io
import json
import marshal
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from towline.errors import SandboxFailed

FORMAT = 1
"""Raised with every change of the layout, so that an older cached bundle is not taken."""

MOUNT = PurePosixPath("/opt/towline")
"""Where a sandbox sees the bundle's folder."""

PROBE_SECONDS = 60

# fmt: off
_EXCLUDED = frozenset((
    "__pycache__", "antigravity.py", "curses", "dbm", "dist-packages", "distutils", "ensurepip", "idlelib",
    "lib-dynload", "lib2to3", "msilib", "pydoc.py", "pydoc_data", "_pyrepl", "site-packages", "sitecustomize.py",
    "sqlite3", "test", "tests", "this.py", "tkinter", "turtle.py", "turtledemo", "unittest", "usercustomize.py",
    "venv", "wsgiref", "xmlrpc",
))
# fmt: on
"""Of the standard library: what a server without terminal, installer and tests can never import."""

_REFUSED = ("_ssl", "_hashlib", "_lzma", "_bz2", "readline")
"""Optional extension modules that would pull large libraries in; the tool server does without."""

_PROBE = """
import ctypes, json, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2].split():
    sys.modules[name] = None
import toolserver.__main__, encodings.ascii, encodings.latin_1, unicodedata, zlib
class Loaded(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
names = []
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Loaded), ctypes.c_size_t, ctypes.c_void_p)
def visit(loaded, size, data):
    names.append((loaded.contents.name or b"").decode())
    return 0
ctypes.CDLL(None).dl_iterate_phdr(visit, None)
print(json.dumps([name for name in names if "/" in name]))
"""
"""Names every shared object the way the loader was asked for it, which is the way it will ask again."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A finished bundle; `folder` is to be mounted read-only."""

    folder: Path
    loader: str

    def command(self, mounted_at: PurePosixPath = MOUNT) -> list[str]:
        """The arguments that start the tool server, where the folder is mounted at `mounted_at`."""
        rt = mounted_at / "rt"
        loader = [str(rt / "lib" / self.loader), "--library-path", str(rt / "lib")]
        return [*loader, str(rt / "python3"), "-I", "-S", "-X", "utf8", "-m", "toolserver"]


def build_bundle(cache: Path) -> Bundle:
    """The bundle of this interpreter and tool server, from `cache` or built into it: takes seconds, blocks.

    Safe to call from several processes at once: each builds aside, the first one's result is kept.
    Raises SandboxFailed(BundleFailed).
    """
    interpreter = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    package = Path(__file__).resolve().parent.parent / "toolserver"
    folder = cache / f"toolserver-{_key(interpreter, package)}"
    try:
        if not folder.exists():
            _publish(folder, interpreter, package)
        loader = next(path.name for path in (folder / "rt" / "lib").iterdir() if path.name.startswith("ld-"))
    except (OSError, subprocess.SubprocessError) as fault:
        raise SandboxFailed("BundleFailed", f"the interpreter bundle could not be built: {fault}") from fault
    return Bundle(folder, loader)


def _publish(folder: Path, interpreter: Path, package: Path) -> None:
    """Build aside, then rename: a bundle is there whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder.parent) as aside:
        made = Path(aside) / "bundle"
        _build(made, interpreter, package)
        try:
            made.rename(folder)
        except OSError:
            if not folder.exists():  # else another builder was first
                raise


def _key(interpreter: Path, package: Path) -> str:
    """Changes whenever the bundle would: with the interpreter's file, the tool server's sources, or the layout."""
    digest = hashlib.sha256()
    status = interpreter.stat()
    digest.update(repr((FORMAT, sys.version, str(interpreter), status.st_size, status.st_mtime_ns)).encode())
    for source in sorted(package.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _build(folder: Path, interpreter: Path, package: Path) -> None:
    rt = folder / "rt"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    library = rt / "lib" / f"python{version}"
    extensions = library / "lib-dynload"
    extensions.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as alone:
        shutil.copytree(package, Path(alone) / "toolserver", ignore=shutil.ignore_patterns("__pycache__"))
        objects = _shared_objects(interpreter, Path(alone))
    if not any(path.name.startswith("ld-") for path in objects):
        raise SandboxFailed("BundleFailed", f"{interpreter} is not loaded by a dynamic loader, so it cannot be bundled")
    _copy(interpreter, rt / "python3")
    for path in objects:
        _copy(path, (extensions if "lib-dynload" in path.parts else rt / "lib") / path.name)
    stdlib = Path(sysconfig.get_path("stdlib"))
    # The interpreter looks for this file to find its library; everything else comes out of the archive.
    shutil.copyfile(stdlib / "os.py", library / "os.py")
    with zipfile.ZipFile(rt / "lib" / f"python{version.replace('.', '')}.zip", "w", zipfile.ZIP_STORED) as archive:
        for name, source in _sources(stdlib, ""):
            archive.writestr(_entry(name), _compiled(name, source))
        for name, source in _sources(package, "toolserver/"):
            archive.writestr(_entry(name), _compiled(name, source))
    _strip(rt)


def _shared_objects(interpreter: Path, packages: Path) -> list[Path]:
    """What the loader opens when the tool server is imported."""
    probe = subprocess.run(  # noqa: S603 - our own interpreter and program
        [interpreter, "-I", "-S", "-B", "-c", _PROBE, packages, " ".join(_REFUSED)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROBE_SECONDS,
        check=False,
        env={},
    )
    if probe.returncode != 0:
        raise SandboxFailed("BundleFailed", f"{interpreter} cannot import the tool server: {probe.stderr[-2000:]}")
    return [Path(name) for name in json.loads(probe.stdout)]


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    target.chmod(0o755)


def _sources(folder: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    """Archive name and file of each Python source below `folder`, sorted."""
    for path in sorted(folder.iterdir()):
        if path.name in _EXCLUDED or path.name.startswith(("_sysconfigdata", "config-")):
            continue
        if path.is_dir():
            yield from _sources(path, f"{prefix}{path.name}/")
        elif path.suffix == ".py":
            yield prefix + path.name, path


def _entry(name: str) -> zipfile.ZipInfo:
    """A fixed time, so that the same sources make the same archive."""
    return zipfile.ZipInfo(f"{name}c", (1980, 1, 1, 0, 0, 0))


def _compiled(name: str, source: Path) -> bytes:
    """An unchecked .pyc: never compared with a source, so it runs from a read-only folder. Without docstrings."""
    with io.open_code(str(source)) as file:
        code = compile(file.read(), f"<towline>/{name}", "exec", dont_inherit=True, optimize=2)
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)


def _strip(rt: Path) -> None:
    """Drop debug symbols: half the size. Without the program, or if it fails on a file, that file stays as it is."""
    program = shutil.which("strip")
    if program is None:
        return
    for path in sorted(rt.rglob("*")):
        if path.is_file() and stat.S_IMODE(os.stat(path).st_mode) & 0o100:
            subprocess.run(  # noqa: S603
                [program, "--strip-unneeded", path],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PROBE_SECONDS,
                check=False,
            )
