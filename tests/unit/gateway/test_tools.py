import pytest
from jsonschema import Draft202012Validator
from mcp_types import Tool

from towline.api.snapshot import Model, Snapshot
from towline.gateway.tools import TOOLS, offered, problem, seconds_allowed, whole_numbers


def snapshot(*tools: str) -> Snapshot:
    model = Model(api="Scripted", provider="p", name="m")
    return Snapshot(namespace="n", name="r", uid="u", prompt="p", model=model, tools=tools)


def test_every_tool_has_a_closed_schema_and_a_description_of_each_argument():
    for tool in TOOLS.values():
        Draft202012Validator.check_schema(tool.schema)
        assert tool.schema["additionalProperties"] is False
        assert all(argument["description"] for argument in tool.schema["properties"].values())
        assert Tool.model_validate(tool.listing()).name == tool.name


def test_a_run_is_offered_its_own_tools_in_its_own_order():
    assert list(offered(snapshot("search", "exec", "message_run"))) == ["search", "exec"]
    assert offered(snapshot()) == {}


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("exec", {"command": "ls"}),
        ("exec", {"command": "ls", "timeout_seconds": 3600, "cwd": "src"}),
        ("read_file", {"path": "a", "offset": 1, "limit": 5000}),
        ("write_file", {"path": "a", "content": ""}),
        ("edit_file", {"path": "a", "old_text": "x", "new_text": "", "replace_all": True}),
        ("list_dir", {}),
        ("search", {"pattern": "x", "max_results": 1000}),
    ],
)
def test_arguments_within_the_contract_have_no_problem(tool, arguments):
    assert problem(TOOLS[tool], arguments) is None


@pytest.mark.parametrize(
    ("tool", "arguments", "sentence"),
    [
        ("exec", {}, "argument command is missing: exec needs command"),
        ("exec", {"command": ""}, 'argument command is "": expected at least 1 characters'),
        ("exec", {"command": 5}, "argument command is 5: expected a text"),
        ("exec", {"command": None}, "argument command is null: expected a text"),
        ("exec", {"command": "x", "timeout_seconds": "5"}, 'argument timeout_seconds is "5": expected a whole number'),
        ("exec", {"command": "x", "timeout_seconds": 1.5}, "argument timeout_seconds is 1.5: expected a whole number"),
        ("read_file", {"path": "x", "offset": True}, "argument offset is true: expected a whole number"),
        ("exec", {"command": "x", "timeout_seconds": 3601}, "argument timeout_seconds is 3601: expected at most 3600"),
        (
            "exec",
            {"command": "x", "disable_sandbox": True},
            "argument disable_sandbox is unknown: exec takes command, timeout_seconds, cwd",
        ),
        ("write_file", {"path": "a"}, "argument content is missing: write_file needs path, content"),
        ("search", {"pattern": ["x"]}, 'argument pattern is ["x"]: expected a text'),
        (
            "edit_file",
            {"path": "a", "old_text": "x", "new_text": "", "replace_all": 1},
            "argument replace_all is 1: expected true or false",
        ),
    ],
)
def test_a_problem_names_the_argument_its_value_and_what_was_expected(tool, arguments, sentence):
    assert problem(TOOLS[tool], arguments) == sentence


def test_several_problems_are_told_together_and_long_values_are_cut():
    told = problem(TOOLS["exec"], {"command": "x" * 200_000, "timeout_seconds": 0})

    assert told is not None
    assert "argument timeout_seconds is 0: expected at least 1" in told
    assert "expected at most 131072 characters" in told
    assert len(told) < 400


def test_a_whole_number_written_with_a_point_is_handed_on_without():
    arguments = {"path": "a", "offset": 5.0, "limit": 2}
    assert problem(TOOLS["read_file"], arguments) is None

    handed = whole_numbers(arguments)

    assert [(value, type(value)) for value in handed.values()] == [("a", str), (5, int), (2, int)]


def test_only_commands_choose_their_timeout():
    assert seconds_allowed("exec", {"command": "x", "timeout_seconds": 7}, 120) == 7
    assert seconds_allowed("exec", {"command": "x"}, 90) == 90
    assert seconds_allowed("read_file", {"path": "x"}, 90) == 30
