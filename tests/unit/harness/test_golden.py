"""A run that version 0.1 recorded is read, folded and resumed by this one. The files of tests/golden never change."""

import json
from pathlib import Path

import pytest

from towline.api.snapshot import Model, Snapshot
from towline.events.event import Event, RunRef, to_json
from towline.harness.fold import fold
from towline.harness.loop import Ending, run_turns
from towline.harness.models.scripted import Scripted
from towline.harness.transcript import AssistantMessage
from towline.testing.ports import MemorySink, ports

FOLDER = Path(__file__).parents[2] / "golden"


def recorded() -> list[Event]:
    events = []
    for line in (FOLDER / "run-0.1.jsonl").read_text().splitlines():
        fields = json.loads(line)
        run = RunRef(fields["run"]["namespace"], fields["run"]["uid"], fields["run"]["name"])
        head = (fields["seq"], fields["id"], fields["type"], run, fields["turn"], fields["time"])
        events.append(Event(*head, src=fields["src"], epoch=fields["epoch"], data=to_json(fields["data"])))
    return events


EVENTS = recorded()
SNAPSHOT = Snapshot.from_json((FOLDER / "snapshot-0.1.json").read_bytes())


def without_pauses(model: Model) -> Model:
    """The model as recorded, but for the pauses that make its demo look alive: two seconds a run."""
    script = tuple(step.model_copy(update={"chunk_milliseconds": 0}) for step in model.script)
    return model.model_copy(update={"script": script})


def test_its_lines_are_written_as_they_were():
    assert [event.line().decode() for event in EVENTS] == (FOLDER / "run-0.1.jsonl").read_text().splitlines()


def test_its_snapshot_has_today_s_defaults_where_it_says_nothing():
    assert SNAPSHOT.sandbox.retain == "Delete"
    assert SNAPSHOT.continue_from is None
    assert SNAPSHOT.idle_policy.suspend_after_seconds is None


def test_its_history_is_what_it_was():
    history = fold(EVENTS)

    assert (history.closed, history.turn, history.turn_open) == ("run.completed", 1, False)
    assert (history.totals.turns, history.totals.tool_calls, history.totals.prompts) == (1, 6, 0)
    assert history.totals.input_tokens + history.totals.output_tokens == 1192
    assert len(history.messages) == 6


@pytest.mark.parametrize("length", range(len(EVENTS)))
async def test_wherever_it_was_cut_it_goes_on_to_the_same_end(length):
    sink = MemorySink(EVENTS[:length])
    tools = {name: lambda **arguments: "done" for name in SNAPSHOT.tools}
    all_ports, _, _ = ports(Scripted(without_pauses(SNAPSHOT.model)), sink, first_id=1000, **tools)
    history = fold(sink.events)

    assert await run_turns(all_ports, SNAPSHOT, history) is Ending.FINISHED
    said = [message.text for message in history.messages if isinstance(message, AssistantMessage)]
    assert said == [message.text for message in fold(EVENTS).messages if isinstance(message, AssistantMessage)]
    assert fold(sink.events) == history
