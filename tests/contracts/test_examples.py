"""Each example is valid, resolves, runs without a key, and plays through to a final answer."""

from pathlib import Path

import pytest

from towline.api import defaults
from towline.api.documents import load
from towline.api.resolve import find_class, find_provider, find_template, resolve
from towline.api.snapshot import Snapshot
from towline.gateway.tools import TOOLS, problem

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


def resolved(path: Path) -> Snapshot:
    documents = load([path])
    (run,) = documents.runs
    template = find_template(run.spec.template_ref.name, "default", (*documents.templates, defaults.TEMPLATE))
    return resolve(
        run,
        template=template,
        provider=find_provider(template.spec.model.provider, documents.providers),
        sandbox_class=find_class(template.spec.sandbox_class_name, (*documents.classes, defaults.SANDBOX_CLASS)),
        uid="u-1",
        namespace="default",
    )


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_named_after_its_file_and_resolves_to_a_scripted_run(path: Path) -> None:
    snapshot = resolved(path)
    assert path.stem.endswith(snapshot.name)
    assert snapshot.model.api == "Scripted"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_its_script_calls_offered_tools_with_good_arguments_and_ends_with_an_answer(path: Path) -> None:
    snapshot = resolved(path)
    *steps, last = snapshot.model.script
    for call in (call for step in steps for call in step.tool_calls):
        assert call.name in snapshot.tools
        assert problem(TOOLS[call.name], call.arguments) is None
    assert snapshot.interactive or all(step.tool_calls for step in steps), "an answer without one ends the run"
    assert last.text
    assert not last.tool_calls


def test_the_bug_is_real_and_the_scripted_edit_mends_it() -> None:
    """The module is executed here as the sandbox would; the end-to-end test runs the whole example."""
    snapshot = resolved(next(path for path in EXAMPLES if path.stem == "02-fix-a-bug"))
    source = next(file.content for file in snapshot.workspace if file.path == "pages.py")
    (edit,) = (call.arguments for step in snapshot.model.script for call in step.tool_calls if call.name == "edit_file")
    assert source.count(edit["old_text"]) == 1
    assert pages_for(source, items=6) == 3
    assert pages_for(source.replace(edit["old_text"], edit["new_text"]), items=6) == 2


def pages_for(source: str, items: int) -> int:
    module: dict[str, object] = {}
    exec(source, module)
    page_count = module["page_count"]
    assert callable(page_count)
    return int(page_count(items, 3))
