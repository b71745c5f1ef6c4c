"""Run as a program: seals itself (unless told `unsealed`) and then tries every way to start a program that we know of.

Each attempt that gets through leaves a line in the marker file. Prints {attempt: what happened} as JSON. A control run
without the seal, each attempt in a fork of its own, shows that the attempts are real.
"""

import sys
import threading

early_thread_may_go, early_thread_done = threading.Event(), threading.Event()
early_outcome = []


def early_thread():
    early_thread_may_go.wait(30)
    early_outcome.append(outcome_of(ATTEMPTS["os.execv in a thread older than the seal"]))
    early_thread_done.set()


threading.Thread(target=early_thread, daemon=True).start()
sealed = sys.argv[1] != "unsealed"
if sealed:
    from towline.seal import seal_process

    seal_process()

import asyncio  # noqa: E402
import concurrent.futures  # noqa: E402
import ctypes  # noqa: E402
import errno  # noqa: E402
import json  # noqa: E402
import multiprocessing  # noqa: E402
import os  # noqa: E402
import pty  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402

MARKER = sys.argv[2]
SHELL = "/bin/sh"
COMMAND = f"echo through >> {MARKER}"
ARGV = [SHELL, "-c", COMMAND]
LIBC = ctypes.CDLL(None, use_errno=True)


def mark():
    with open(MARKER, "a") as marker:
        marker.write("through\n")


def c_argv():
    return (ctypes.c_char_p * 4)(*(word.encode() for word in ARGV), None)


def libc(name, *arguments, failed=-1):
    """A call through libc; raises OSError the way os does."""
    ctypes.set_errno(0)
    value = getattr(LIBC, name)(*arguments)
    if value == failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return value


def syscall(number, *arguments):
    return libc("syscall", ctypes.c_long(number), *arguments)


def forked(pid):
    """Both sides of a fork that succeeded."""
    if pid == 0:
        mark()
        os._exit(0)
    os.waitpid(pid, 0)


def raw_fork(number, *arguments):
    forked(syscall(number, *arguments))


def status(value):
    """Of os.system and its like: the shell that could not be started is no exception."""
    if value:
        raise OSError(errno.EPERM, f"status {value}")


def posix_spawn(call):
    os.waitpid(call(SHELL, ARGV, dict(os.environ)), 0)


def pool(method):
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context(method)) as workers:
        workers.submit(mark).result(20)


def process(method):
    child = multiprocessing.get_context(method).Process(target=mark)
    child.start()
    child.join(20)


async def spawn_async(call, *arguments):
    await (await call(*arguments)).wait()


def popen():
    with os.popen(COMMAND) as stream:
        stream.read()


def libc_popen():
    LIBC.popen.restype = ctypes.c_void_p
    stream = libc("popen", COMMAND.encode(), b"r", failed=None)
    LIBC.pclose(ctypes.c_void_p(stream))


def libc_posix_spawn():
    pid = ctypes.c_int()
    refusal = LIBC.posix_spawn(ctypes.byref(pid), SHELL.encode(), None, None, c_argv(), None)
    if refusal:
        raise OSError(refusal, os.strerror(refusal))
    os.waitpid(pid.value, 0)


def execute_memfd():
    descriptor = os.memfd_create("program")
    with open("/bin/sh", "rb") as shell:
        os.write(descriptor, shell.read())
    os.execve(descriptor, ARGV, dict(os.environ))


def in_thread(call):
    outcome = []

    def run():
        try:
            outcome.append(call())
        except OSError as refusal:
            outcome.append(refusal)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    if isinstance(outcome[0], OSError):
        raise outcome[0]


def execl():
    LIBC.execl(SHELL.encode(), b"sh", b"-c", COMMAND.encode(), None)
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


X86 = os.uname().machine == "x86_64"
EXECVE, EXECVEAT, CLONE = (59, 322, 56) if X86 else (221, 281, 220)
AT_FDCWD, SIGCHLD, CLONE_VM, CLONE_VFORK, CLONE_NEWUSER = -100, 17, 0x100, 0x4000, 0x10000000

ATTEMPTS = {
    "os.execv": lambda: os.execv(SHELL, ARGV),
    "os.execve": lambda: os.execve(SHELL, ARGV, {}),
    "os.execvp": lambda: os.execvp("sh", ARGV),
    "os.execve of a descriptor": lambda: os.execve(os.open(SHELL, os.O_RDONLY), ARGV, {}),
    "os.execv in a later thread": lambda: in_thread(lambda: os.execv(SHELL, ARGV)),
    "os.execv in a thread older than the seal": lambda: os.execv(SHELL, ARGV),
    "os.fork": lambda: forked(os.fork()),
    "os.forkpty": lambda: forked(os.forkpty()[0]),
    "pty.fork": lambda: forked(pty.fork()[0]),
    "os.posix_spawn": lambda: posix_spawn(os.posix_spawn),
    "os.posix_spawnp": lambda: posix_spawn(os.posix_spawnp),
    "os.spawnv": lambda: status(os.spawnv(os.P_WAIT, SHELL, ARGV)),
    "os.system": lambda: status(os.system(COMMAND)),
    "os.popen": popen,
    "subprocess.run": lambda: subprocess.run(ARGV, check=True),
    "subprocess.run with a shell": lambda: subprocess.run(COMMAND, shell=True, check=True),
    "subprocess.run with preexec_fn": lambda: subprocess.run(ARGV, check=True, preexec_fn=os.getpid),
    "subprocess.run without closing descriptors": lambda: subprocess.run(ARGV, check=True, close_fds=False),
    "subprocess.run in a new session": lambda: subprocess.run(ARGV, check=True, start_new_session=True),
    "asyncio.create_subprocess_exec": lambda: asyncio.run(spawn_async(asyncio.create_subprocess_exec, *ARGV)),
    "asyncio.create_subprocess_shell": lambda: asyncio.run(spawn_async(asyncio.create_subprocess_shell, COMMAND)),
    "multiprocessing fork": lambda: process("fork"),
    "multiprocessing spawn": lambda: process("spawn"),
    "multiprocessing forkserver": lambda: process("forkserver"),
    "ProcessPoolExecutor": lambda: pool("fork"),
    "libc execve": lambda: libc("execve", SHELL.encode(), c_argv(), None),
    "libc execv": lambda: libc("execv", SHELL.encode(), c_argv()),
    "libc execvp": lambda: libc("execvp", b"sh", c_argv()),
    "libc execl": execl,
    "libc fexecve": lambda: libc("fexecve", os.open(SHELL, os.O_RDONLY), c_argv(), c_argv()),
    "libc system": lambda: status(LIBC.system(COMMAND.encode())),
    "libc popen": libc_popen,
    "libc posix_spawn": libc_posix_spawn,
    "libc fork": lambda: forked(libc("fork")),
    "raw execve": lambda: syscall(EXECVE, SHELL.encode(), c_argv(), None),
    "raw execveat": lambda: syscall(EXECVEAT, AT_FDCWD, SHELL.encode(), c_argv(), None, 0),
    "raw clone": lambda: raw_fork(CLONE, SIGCHLD, 0, 0, 0, 0),
    "memfd_create and execve": execute_memfd,
}
if X86:
    ATTEMPTS["raw fork"] = lambda: raw_fork(57)

CLONE3_ARGUMENTS = (ctypes.c_uint64 * 11)(0, 0, 0, 0, SIGCHLD)
REFUSALS = {
    "raw clone3": (435, ctypes.byref(CLONE3_ARGUMENTS), 88),
    "raw clone with a user namespace": (CLONE, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0),
    "raw clone of a thread into a namespace": (CLONE, 0x3D0F00 | CLONE_NEWUSER, 0, 0, 0, 0),
    "ptrace": (101 if X86 else 117, 0, 0, 0, 0),
    "process_vm_readv": (310 if X86 else 270, os.getpid(), 0, 0, 0, 0, 0),
    "process_vm_writev": (311 if X86 else 271, os.getpid(), 0, 0, 0, 0, 0),
    "pidfd_getfd": (438, 0, 0, 0),
    "memfd_create": (319 if X86 else 279, b"x", 0),
    "unshare": (272 if X86 else 97, CLONE_NEWUSER),
    "setns": (308 if X86 else 268, 0, 0),
    "mount": (165 if X86 else 40, b"none", b"/nowhere", b"tmpfs", 0, 0),
    "chroot": (161 if X86 else 51, b"/nowhere"),
    "pivot_root": (155 if X86 else 41, b"/nowhere", b"/nowhere"),
    "fsopen": (430, b"tmpfs", 0),
    "io_uring_setup": (425, 1, 0),
    "io_uring_enter": (426, 0, 0, 0, 0, 0, 0),
    "bpf": (321 if X86 else 280, 0, 0, 0),
    "userfaultfd": (323 if X86 else 282, 0),
    "perf_event_open": (298 if X86 else 241, 0, 0, 0, 0, 0),
    "keyctl": (250 if X86 else 219, 0, 0, 0, 0, 0),
    "add_key": (248 if X86 else 217, 0, 0, 0, 0, 0),
    "open_by_handle_at": (304 if X86 else 265, 0, 0, 0),
    "init_module": (175 if X86 else 105, 0, 0, 0),
    "finit_module": (313 if X86 else 273, 0, 0, 0),
    "kexec_load": (246 if X86 else 104, 0, 0, 0, 0),
    "personality": (135 if X86 else 92, 0),
    "TIOCSTI": (16 if X86 else 29, 0, 0x5412, b"x"),
}
if X86:
    REFUSALS["raw vfork"] = (58,)
    REFUSALS["x32 execve"] = (0x40000000 | 520, SHELL.encode(), c_argv(), None)
    REFUSALS["x32 fork"] = (0x40000000 | 57,)


def outcome_of(attempt):
    try:
        attempt()
    except (OSError, subprocess.SubprocessError, EOFError, concurrent.futures.BrokenExecutor) as refusal:
        return f"refused: {type(refusal).__name__} {getattr(refusal, 'errno', None)}"
    return "returned"


def errno_of(number, *arguments):
    ctypes.set_errno(0)
    value = LIBC.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if number == CLONE and value == 0:
        os._exit(0)
    return 0 if value != -1 else ctypes.get_errno()


def main():
    if not sealed:
        for attempt in ATTEMPTS.values():
            if (pid := os.fork()) == 0:
                signal.alarm(30)
                outcome_of(attempt)
                os._exit(0)
            os.waitpid(pid, 0)
        return
    outcomes = {name: outcome_of(attempt) for name, attempt in ATTEMPTS.items()}
    early_thread_may_go.set()
    early_thread_done.wait(30)
    outcomes["os.execv in a thread older than the seal"] = early_outcome[0]
    refusals = {name: errno_of(*call) for name, call in REFUSALS.items()}
    print(json.dumps({"outcomes": outcomes, "refusals": refusals}))


if __name__ == "__main__":
    main()
