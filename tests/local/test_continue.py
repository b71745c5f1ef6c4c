"""`spec.continueFrom` on this machine: which kept run it means, and how it is said when there is none."""

from tests.local.command import Towline, agent_run, says, script, template


def test_what_cannot_be_continued_is_named(towline: Towline) -> None:
    first = towline.write("first.yaml", agent_run("first"), template(), script(says("One.")))
    assert towline("run", first, "--json", "--keep").code == 0

    def refusal(name: str, seq: int | None, *options: str) -> str:
        source = {"name": name} if seq is None else {"name": name, "seq": seq}
        path = towline.write("next.yaml", agent_run("next", continueFrom=source), template(), script(says("Two.")))
        finished = towline("run", path, *options)
        assert finished.code == 2, finished.err
        return finished.err

    what = "towline: AgentRun/next: spec.continueFrom"
    assert refusal("first", None) == (
        f"{what} names a kept run, and the new one must be kept beside it: add --keep, or --store DIR\n"
    )
    assert refusal("frist", None, "--keep") == f"{what}: no run 'frist' here; did you mean 'first'?\n"
    assert f"{what}: seq is 500; first has " in refusal("first", 500, "--keep")
