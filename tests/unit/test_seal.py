"""The filter itself, run by a small interpreter: so the table of a machine that we do not have is tested, too."""

import errno
import re
from pathlib import Path

import pytest

from towline import seal

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
NEWER_THAN_SOME_HEADERS = {"open_tree_attr", "memfd_secret"}
THREAD_FLAGS = 0x3D0F00  # what glibc and musl create threads with
ALLOW, KILL = seal.ALLOW, seal.KILL_PROCESS


def verdict(machine, number, *arguments, arch=None):
    """What the kernel would do with a system call."""
    words = {0: number, 4: arch or seal.MACHINES[machine].audit_arch}
    for place, argument in enumerate(arguments):
        words[16 + 8 * place] = argument & 0xFFFFFFFF
    program, at, accumulator = seal.bpf_program(machine), 0, 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        match code:
            case seal.LOAD:
                accumulator = words.get(operand, 0)
            case seal.RETURN:
                return operand
            case seal.JUMP_EQUAL:
                at += if_true if accumulator == operand else if_false
            case seal.JUMP_FROM:
                at += if_true if accumulator >= operand else if_false
            case seal.JUMP_ANY_BIT:
                at += if_true if accumulator & operand else if_false


machines = pytest.mark.parametrize("machine", list(seal.MACHINES))


def number(machine, call):
    calls = {**seal.DENIED, "clone": seal.CLONE, "clone3": seal.CLONE3, "ioctl": seal.IOCTL}
    return calls[call][list(seal.MACHINES).index(machine)]


@machines
def test_every_call_of_the_table_is_refused(machine):
    for call in seal.DENIED:
        if number(machine, call) is not None:
            assert verdict(machine, number(machine, call)) == seal.REFUSE, call


@machines
def test_every_other_call_is_allowed(machine):
    special = {number(machine, call) for call in [*seal.DENIED, "clone", "clone3"]}

    assert {verdict(machine, each) for each in range(600) if each not in special} == {ALLOW}


@machines
def test_only_threads_may_be_cloned(machine):
    clone = number(machine, "clone")

    assert verdict(machine, clone, THREAD_FLAGS) == ALLOW
    assert verdict(machine, clone, 17) == seal.REFUSE
    assert verdict(machine, clone, 0x4000 | 0x100) == seal.REFUSE
    for namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, clone, THREAD_FLAGS | namespace) == seal.REFUSE
    assert verdict(machine, number(machine, "clone3")) == 0x50000 | errno.ENOSYS


@machines
def test_a_terminal_s_input_cannot_be_forged(machine):
    ioctl = number(machine, "ioctl")

    assert verdict(machine, ioctl, 0, 0x5412) == seal.REFUSE
    assert verdict(machine, ioctl, 0, 0x541C) == seal.REFUSE
    assert verdict(machine, ioctl, 0, 0x5413) == ALLOW


def test_the_second_numbering_of_x86_is_refused_and_a_foreign_machine_killed():
    assert verdict("x86_64", 0x40000000 | 520) == seal.REFUSE
    assert verdict("x86_64", 0x40000000) == seal.REFUSE
    assert verdict("x86_64", 1, arch=0x40000003) == KILL
    assert verdict("aarch64", 1, arch=0x40000028) == KILL


@pytest.mark.parametrize("machine", ["riscv64", "armv7l", "i686", "ppc64le", "s390x", ""])
def test_a_machine_without_a_table_fails(machine):
    with pytest.raises(seal.SealFailed, match="no table"):
        seal.bpf_program(machine)


@machines
def test_the_numbers_are_those_of_the_kernel_s_headers(machine):
    if not HEADERS[machine].exists():
        pytest.skip("no kernel headers installed")
    lines = HEADERS[machine].read_text()
    known = {name: int(value) for name, value in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\s", lines)}
    for call in [*seal.DENIED, "clone", "clone3", "ioctl"]:
        ours = number(machine, call)
        if ours is None:
            assert call not in known, call
        elif call not in NEWER_THAN_SOME_HEADERS:
            assert known[call] == ours, call
