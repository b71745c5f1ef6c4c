"""The exit codes are told apart, also from that of a process that could not be sealed."""

from towline.exit_codes import NO_CRASH, HarnessExit
from towline.seal import EXIT_CODE


def test_the_seal_s_code_is_in_the_list_though_the_seal_imports_nothing():
    assert HarnessExit.SEAL_FAILED == EXIT_CODE


def test_only_ends_that_are_no_fault_of_the_harness_are_no_crash():
    assert not NO_CRASH & {HarnessExit.FINISHED, HarnessExit.CRASHED, HarnessExit.SEAL_FAILED}
