"""The conversation of the README on the cluster: it sleeps without a pod, is woken by a prompt, and remembers."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e.cluster import places
from e2e.cluster.shell import Failed, wait_until
from e2e.installation import HARNESSES, SANDBOXES
from e2e.runs import Run, Team, Towline, assert_whole

EXAMPLE = places.REPOSITORY / "examples" / "03-conversation.yaml"
LONG = "chunkMilliseconds: 60"
ASLEEP_SECONDS = 60

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def conversation(team: Team) -> Run:
    """The example, when it waits for the first time. Its long answer takes longer still, as to break in takes a command
    that starts, and finds run and store."""
    team.made.append(("modelprovider", "conversation-script"))
    text = EXAMPLE.read_text()
    assert text.count(LONG) == 1
    slower = text.replace(LONG, "chunkMilliseconds: 250")
    team.installation.kubectl("apply", f"--namespace={team.namespace}", "--filename=-", stdin=slower)
    return Run(team, "conversation").wait("InputRequired")


def until_asleep(conversation: Run) -> None:
    conversation.until("HarnessReady", "False", "Asleep", ASLEEP_SECONDS)
    kubectl, labels = conversation.installation.kubectl, f"towline.dev/run-uid={conversation.uid}"

    def no_pod() -> bool:
        pods = [pod for each in (HARNESSES, SANDBOXES) for pod in kubectl.items("pods", each, labels)]
        return not [pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]

    wait_until("no pod of the run works", no_pod, ASLEEP_SECONDS)


def ask(towline: Towline, prompt: str, *options: str) -> str:
    return towline("prompt", "conversation", prompt, "--wait", "--timeout=120", *options).rstrip("\n")


def test_a_run_sleeps_without_a_pod_is_woken_by_a_prompt_and_remembers(conversation: Run, towline: Towline) -> None:
    until_asleep(conversation)
    assert conversation.status["phase"] == "InputRequired"
    assert "InputRequired,Asleep" in towline("ls")

    assert ask(towline, "What is my name?") == 'You are Ada. You have just asked me "What is my name?".'

    written = ask(towline, "Write it down.")
    assert (
        written
        == 'It is written down, Ada. Your second prompt was "What is my name?", and this one was "Write it down.".'
    )
    until_asleep(conversation)
    towline("cancel", "conversation", "--reason", "said all")
    conversation.wait()
    assert conversation.outcome()[0] == "Cancelled"
    events = conversation.events()
    assert_whole(events)
    assert events[-1].payload["reason"] == "said all"
    assert conversation.status["attempt"] == 0, "to sleep is no crash"
    with pytest.raises(Failed, match=r"has ended: run\.cancelled"):
        towline("prompt", "conversation", "Too late.")


def test_prompts_given_at_once_are_answered_in_order_and_two_followers_miss_nothing(
    conversation: Run, towline: Towline
) -> None:
    with ThreadPoolExecutor(4) as together:
        followers = [together.submit(towline, "tail", "conversation", "--follow", "--json") for _ in range(2)]
        given = [together.submit(ask, towline, f"prompt of {who}") for who in ("a", "b")]
        answers = sorted(each.result() for each in given)
        towline("cancel", "conversation")
        conversation.wait()
        shown = [each.result() for each in followers]

    events = conversation.events()
    assert_whole(events)
    assert [each.encode() for each in shown] == [b"".join(event.line() + b"\n" for event in events)] * 2
    assert [answer.split()[0] for answer in answers] == ["It", "You"]
    turns = [event.turn for event in events if event.turn is not None]
    assert turns == sorted(turns), "no turn begins before the one before has ended"
    taken = [event for event in events if event.type == "user.message"]
    assert [(event.turn, event.payload["prompt_id"]) for event in taken] == [(1, "0-0"), (2, "1-0"), (3, "2-0")]


def test_a_steer_is_taken_up_in_the_running_turn(conversation: Run, towline: Towline) -> None:
    for prompt in ("One.", "Two."):
        ask(towline, prompt)
    towline("prompt", "conversation", "Talk to me.")
    conversation.until_event("agent.message_start", 5)

    assert ask(towline, "By the way.", "--steer") == 'I heard you, Ada. You said "By the way.".'

    events = conversation.events()
    taken = [(event.turn, event.payload["content"]) for event in events if event.type == "user.message"]
    assert taken[-2:] == [(4, "Talk to me."), (4, "By the way.")]
    towline("cancel", "conversation")
    conversation.wait()
    assert_whole(conversation.events())


def test_an_interrupt_breaks_a_streaming_answer_off(conversation: Run, towline: Towline) -> None:
    for prompt in ("One.", "Two."):
        ask(towline, prompt)
    towline("prompt", "conversation", "Talk to me.")
    conversation.until_event("agent.message_start", 5)

    assert ask(towline, "Stop!", "--interrupt") == 'I heard you, Ada. You said "Stop!".'

    (aborted,) = [event for event in conversation.events() if event.type == "agent.message_aborted"]
    assert aborted.payload["reason"] == "Interrupted"
    towline("cancel", "conversation")
    conversation.wait()
    assert_whole(conversation.events())
