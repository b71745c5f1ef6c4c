"""A manifest that we write reads back as the same object, and the tools of both sides are the same."""

import string

import yaml
from hypothesis import given, settings
from hypothesis import strategies as some

from towline.api.agentrun import AgentRun
from towline.api.common import TOOLS
from towline.api.yaml_documents import parse
from towline.gateway.tools import TOOLS as SERVED_TOOLS

names = some.from_regex(r"[a-z]([-a-z0-9.]{0,20}[a-z0-9])?", fullmatch=True)
texts = some.text(some.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=200)
words = some.text(string.ascii_letters, min_size=1, max_size=20)
files = some.fixed_dictionaries({"path": words, "content": texts, "executable": some.booleans()})
specs = some.fixed_dictionaries(
    {"prompt": texts},
    optional={
        "templateRef": some.fixed_dictionaries({"name": names}),
        "params": some.dictionaries(words, texts, max_size=4),
        "limits": some.fixed_dictionaries({}, optional={"maxTurns": some.integers(1, 1_000_000)}),
        "suspend": some.booleans(),
        "workspace": some.fixed_dictionaries({"files": some.lists(files, max_size=3, unique_by=lambda f: f["path"])}),
        "sandbox": some.fixed_dictionaries({"policy": some.sampled_from(["Lazy", "Eager", "Never"])}),
        "ttlSecondsAfterFinished": some.integers(0, 1000),
    },
)


@settings(max_examples=60)
@given(name=names, spec=specs)
def test_a_run_written_as_yaml_reads_back_the_same(name: str, spec: dict[str, object]) -> None:
    run = AgentRun.from_wire({"metadata": {"name": name}, "spec": spec})
    data = run.model_dump(mode="json", by_alias=True, exclude_none=True)
    # Quoted, as PyYAML writes 0E0 bare, which is a number for us and for kubectl.
    written = yaml.safe_dump(data, allow_unicode=True, default_style='"')
    (document,) = parse(written, "written")
    assert AgentRun.from_wire(document.value) == run


def test_the_tools_that_a_template_may_list_are_the_gateway_s() -> None:
    assert tuple(SERVED_TOOLS) == TOOLS
