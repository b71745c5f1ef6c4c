"""The seal: this process, all its threads and whatever it may load can start no program and no other process.

Called as the very first statement of each trusted entry point (`harness/__main__.py`, `gateway/__main__.py`), before
any third-party import. Standard library only. It denies by a seccomp filter that the kernel never lifts; it does not
restrict files or the network, and it cannot reach a process that is started from outside (exec into the container).
"""

import ctypes
import errno
import os
import struct
import sys
from dataclasses import dataclass
from typing import NoReturn

EXIT_CODE = 13
"""Exit code of a process that could not seal itself, and of the program that the canary would have become."""


class SealFailed(Exception):
    """The process is not sealed. Do nothing further with it: exit with EXIT_CODE."""


@dataclass(frozen=True, slots=True)
class Seal:
    """What was installed, for the event `harness.sealed`."""

    instructions: int
    filters: int
    """How many seccomp filters bind this process, a container runtime's included; 0 where the kernel does not tell."""
    landlock_abi: int
    """Landlock version of the kernel, 0 without it: reported, not required."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One row of the table of machines: what the kernel calls it, and its number of seccomp()."""

    audit_arch: int
    seccomp: int


MACHINES = {"x86_64": Machine(0xC000003E, 317), "aarch64": Machine(0xC00000B7, 277)}

# System call → its number on (x86_64, aarch64); None where the machine has no such call. Sources: the kernel's
# arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h; tests compare with installed headers.
DENIED: dict[str, tuple[int | None, int | None]] = {
    # another program, another process
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    "uselib": (134, None),
    "memfd_create": (319, 279),  # code that never was a file
    "memfd_secret": (447, 447),
    # somebody else's process
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # other namespaces, other roots
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    # the kernel itself; io_uring does its work past any filter
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
}
CLONE = (56, 220)
CLONE3 = (435, 435)
IOCTL = (16, 29)

CLONE_THREAD = 0x00010000
CLONE_NEW_NAMESPACE = 0x7E020000  # NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
TIOCSTI, TIOCLINUX = 0x5412, 0x541C  # put words into the mouth of a terminal's user: a shell would run them
X32_BIT = 0x40000000  # x86_64's second numbering of the same calls

ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
REFUSE = 0x00050000 | errno.EPERM
ABSENT = 0x00050000 | errno.ENOSYS

LOAD, JUMP_EQUAL, JUMP_FROM, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
OFFSET_NUMBER, OFFSET_ARCH, OFFSET_ARGUMENT_0, OFFSET_ARGUMENT_1 = 0, 4, 16, 24  # struct seccomp_data, little endian


def bpf_program(machine: str) -> list[tuple[int, int, int, int]]:
    """The filter for `machine` as (code, jump if true, jump if false, operand). Raises SealFailed for an unknown one.

    Calls that no rule looks into are allowed by number alone, which kernels from 5.11 on keep in a bitmap: the order
    of the comparisons costs nothing there, so they stand in the order of the table.
    """
    if machine not in MACHINES:
        raise SealFailed(f"machine {machine!r}: no table of system calls; known are {', '.join(MACHINES)}")
    column = list(MACHINES).index(machine)
    program = [
        (LOAD, 0, 0, OFFSET_ARCH),
        (JUMP_EQUAL, 1, 0, MACHINES[machine].audit_arch),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, OFFSET_NUMBER),
        (JUMP_FROM, 0, 1, X32_BIT),
        (RETURN, 0, 0, REFUSE),
    ]
    for row in DENIED.values():
        if (number := row[column]) is not None:
            program += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    return [
        *program,
        # Its flags lie behind a pointer that a filter cannot follow; told that it is missing, libc falls back to clone.
        *[(JUMP_EQUAL, 0, 1, CLONE3[column]), (RETURN, 0, 0, ABSENT)],
        # A thread of this process, in its namespaces, and nothing else.
        *[(JUMP_EQUAL, 0, 5, CLONE[column]), (LOAD, 0, 0, OFFSET_ARGUMENT_0)],
        *[(JUMP_ANY_BIT, 2, 0, CLONE_NEW_NAMESPACE), (JUMP_ANY_BIT, 0, 1, CLONE_THREAD)],
        *[(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)],
        *[(JUMP_EQUAL, 0, 4, IOCTL[column]), (LOAD, 0, 0, OFFSET_ARGUMENT_1)],
        *[(JUMP_EQUAL, 1, 0, TIOCSTI), (JUMP_EQUAL, 0, 1, TIOCLINUX), (RETURN, 0, 0, REFUSE)],
        (RETURN, 0, 0, ALLOW),
    ]


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def seal() -> Seal:
    """Bind every thread of this process, present and future, for good. Needs no privilege.

    Raises SealFailed on an unknown machine, a kernel without seccomp, or a thread that cannot be bound.
    """
    machine = os.uname().machine
    program = bpf_program(machine)
    if sys.byteorder != "little" or sys.maxsize < 2**32:
        raise SealFailed(f"machine {machine!r}: expected a 64-bit little-endian interpreter")
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    filter_program = _Program(len(program), ctypes.cast(code, ctypes.c_void_p))
    set_no_new_privileges, set_mode_filter, all_threads = 38, 1, 1
    if libc.prctl(set_no_new_privileges, 1, 0, 0, 0):
        raise SealFailed(f"prctl(PR_SET_NO_NEW_PRIVS): {os.strerror(ctypes.get_errno())}")
    outcome = libc.syscall(
        ctypes.c_long(MACHINES[machine].seccomp),
        ctypes.c_ulong(set_mode_filter),
        ctypes.c_ulong(all_threads),
        ctypes.byref(filter_program),
    )
    if outcome > 0:
        raise SealFailed(f"seccomp: thread {outcome} has a filter of its own and cannot be bound")
    if outcome:
        raise SealFailed(f"seccomp(SECCOMP_SET_MODE_FILTER): {os.strerror(ctypes.get_errno())}")
    return Seal(len(program), int(_status().get("Seccomp_filters", "0")), _landlock_abi(libc))


def prove() -> None:
    """Try what the seal forbids, and read what the kernel says. Raises SealFailed unless all of it is refused.

    Were the process not sealed, the canary would turn it into a program that ends at once with EXIT_CODE: there is no
    way from here to a running unsealed process.
    """
    try:
        os.execv(sys.executable, [sys.executable, "-ISc", f"raise SystemExit({EXIT_CODE})"])  # noqa: S606 - the canary
    except OSError as refusal:
        _must_be_refused("execve", refusal)
    try:
        if not os.fork():
            os._exit(EXIT_CODE)
    except OSError as refusal:
        _must_be_refused("fork", refusal)
    else:
        raise SealFailed("fork: succeeded, expected to be refused")
    for thread in os.listdir("/proc/self/task"):
        status = _status(thread)
        for field, expected in (("Seccomp", "2"), ("NoNewPrivs", "1")):
            if status.get(field) != expected:
                raise SealFailed(f"/proc/self/task/{thread}/status: {field} is {status.get(field)}, not {expected}")


def seal_process() -> Seal:
    """Seal and prove, for a process's main: on failure one line on stderr and the end, with EXIT_CODE."""
    try:
        sealed = seal()
        prove()
    except (SealFailed, OSError, ValueError) as fault:
        _end(fault)
    return sealed


def _end(fault: Exception) -> NoReturn:
    message = str(fault).replace("\\", "\\\\").replace('"', "'")
    print(f'{{"level":"error","event":"sealing failed","reason":"SealFailed","message":"{message}"}}', file=sys.stderr)
    raise SystemExit(EXIT_CODE)


def _must_be_refused(call: str, refusal: OSError) -> None:
    if refusal.errno != errno.EPERM:
        raise SealFailed(f"{call}: failed with {refusal.strerror}, expected to be refused by the filter")


def _status(thread: str = "") -> dict[str, str]:
    path = f"/proc/self/task/{thread}/status" if thread else "/proc/self/status"
    with open(path, encoding="utf-8") as lines:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _landlock_abi(libc: ctypes.CDLL) -> int:
    """landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION): 444 on every machine."""
    answer: int = libc.syscall(ctypes.c_long(444), ctypes.c_void_p(None), ctypes.c_size_t(0), ctypes.c_uint(1))
    return max(answer, 0)
