import math
import re
from io import StringIO

import pytest
from rich.console import Console

from fidelity import events
from fidelity.compare import Agreement
from fidelity.engines.facts import ServerFacts
from fidelity.observations import Answer, Observation
from fidelity.plan import RunPlan
from fidelity.probes.cells import Cell
from fidelity.report.console import Progress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def observation(
    prompt: str = "capital/france", text: str | None = "Paris", cached: int = 0, arm: str = "none"
):
    answer = Answer(status=200, latency=0.01, text=text, prompt_tokens=193, cached_tokens=cached)
    return Observation(
        order=0,
        arm=arm,
        probe="resend",
        role="hit",
        namespace="n",
        length=193,
        sent_at=0.0,
        answer=answer,
        prompt=prompt,
    )


def ready(arm: str = "none", requests: int = 200, *, simulated: bool = True) -> events.ServerReady:
    facts = ServerFacts("fidelity-embedded", "0.1.0", "quiz-state", simulated=simulated)
    cells = (Cell("L=193 tail=1", "suspect", 193, 1, ""), Cell("L=194 tail=2", "control", 194, 2, ""))
    return events.ServerReady(arm, facts, cells, requests, 1.25)


def corruption(prompt: str = "capital/france", arm: str = "none") -> events.Corruption:
    return events.Corruption(
        observation(prompt, arm=arm),
        observation(prompt, "!", cached=192, arm=arm),
        Agreement("broken", math.inf, ("NaN: 21 null",)),
    )


def shown(*happened: events.Event, file: StringIO | None = None) -> str:
    file = file or StringIO()
    console = Console(file=file, width=100, force_terminal=file.isatty())
    with Progress(console, RunPlan()) as progress:
        for event in happened:
            progress.handle(event)
    return file.getvalue()


def test_an_arm_takes_at_most_a_line_per_tenth() -> None:
    text = shown(ready(), *[events.Sent(observation())] * 200, events.ArmDone("none", 12.0))
    lines = [line for line in text.splitlines() if "requests (" in line]
    assert len(lines) == 10
    assert lines[0].startswith("arm none: 20/200 requests (10 %)")
    assert lines[-1] == "arm none: 200/200 requests (100 %), 12 s"


def test_few_requests_take_few_lines() -> None:
    text = shown(ready(requests=3), *[events.Sent(observation())] * 3, events.ArmDone("none", 1.0))
    assert re.findall(r"(\d)/3 requests", text) == ["1", "2", "3"]


def test_more_sends_than_foreseen_never_pass_the_total() -> None:
    text = shown(ready(requests=10), *[events.Sent(observation())] * 15, events.ArmDone("none", 1.0))
    counts = [(int(done), int(total)) for done, total in re.findall(r"(\d+)/(\d+) requests", text)]
    assert counts[-1] == (15, 15)
    assert all(done <= total for done, total in counts)


def test_skipped_sends_of_a_resumed_run_count() -> None:
    text = shown(ready(), events.Skipped("none", 150), events.ArmDone("none", 1.0))
    assert "arm none: 150/200 requests (75 %)" in text


def test_the_first_corruption_is_shown_at_once_and_later_ones_are_counted() -> None:
    file = StringIO()
    progress = Progress(Console(file=file, width=100), RunPlan())
    progress.handle(ready())
    progress.handle(events.Sent(observation()))
    progress.handle(corruption())
    text = file.getvalue()
    assert "CORRUPT: arm none: first proof after 1 requests" in text
    assert "NaN: 21 null" in text
    assert "prompt capital/france, 193 tokens: 192 from the cache, 1 recomputed" in text
    assert 'cold said "Paris"\n  hit said  "!"\n' in text
    for event in (corruption(), corruption("yes-no/moon"), events.ArmDone("none", 3.0)):
        progress.handle(event)
    assert file.getvalue().count("CORRUPT") == 1
    assert "corrupt prompts: 2, sends: 3" in file.getvalue()


def test_each_arm_shows_its_own_first_corruption() -> None:
    text = shown(ready("none"), corruption(), ready("splitk"), corruption(arm="splitk"))
    assert re.findall(r"CORRUPT: arm (\w+)", text) == ["none", "splitk"]


def test_start_ready_and_warnings() -> None:
    text = shown(
        events.ServerStarting("none", "embedded"), ready(), events.Warning("none", "mind the traffic")
    )
    assert "arm none: starting embedded\n" in text
    assert "ready in 1.2 s: fidelity-embedded 0.1.0, quiz-state, SIMULATED\n" in text
    assert "30 prompts x 2 lengths, suspect tails 1, controls 2, about 200 requests\n" in text
    assert "warning: arm none: mind the traffic\n" in text
    assert "SIMULATED" not in shown(ready(simulated=False))


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (events.RunEnded("complete"), ""),
        (
            events.RunEnded("failed", "it went away", "start it again"),
            "error: it went away\n  start it again\n",
        ),
        (events.RunEnded("failed", "it ended:\n  its log"), "error: it ended:\n  its log\n"),
        (events.RunEnded("interrupted", "interrupted", "go on later"), "interrupted\n  go on later\n"),
        (events.RunEnded("out of time", "2 minutes are over"), "out of time: 2 minutes are over\n"),
        (events.RunEnded("stopped at the first proof"), "stopped at the first proof\n"),
    ],
)
def test_how_the_run_ended(end: events.RunEnded, said: str) -> None:
    assert shown(end) == said


def test_no_escape_codes_off_a_terminal_whatever_the_server_says() -> None:
    odd = events.Corruption(
        observation(), observation(text="\x1b[2J\x07[bold]", cached=192), Agreement("hard flip", 2.0)
    )
    text = shown(ready(), odd, events.RunEnded("failed", "\x1b[31mred"))
    assert "\x1b" not in text
    assert r'hit said  "\x1b[2J\x07[bold]"' in text


def test_an_answer_without_text_shows_its_ids() -> None:
    assert "hit said  ids []" in shown(
        ready(), events.Corruption(observation(), observation(text=None), Agreement("hard flip", 2.0))
    )


def test_a_terminal_gets_a_bar_that_ends_full() -> None:
    text = shown(
        ready(requests=4),
        *[events.Sent(observation())] * 4,
        corruption(),
        events.ArmDone("none", 1.0),
        file=Terminal(),
    )
    assert "\x1b" in text
    assert "4/4" in text
    assert "corrupt prompts: 1, sends: 1" in text
    assert "4/4 requests (" not in text


def test_forced_colour_in_a_log_brings_no_bar() -> None:
    file = StringIO()
    with Progress(Console(file=file, force_terminal=True, width=100), RunPlan()) as progress:
        progress.handle(ready(requests=2))
        progress.handle(events.Sent(observation()))
    assert "1/2 requests (50 %)" in file.getvalue()
    assert "\x1b[?25l" not in file.getvalue()
