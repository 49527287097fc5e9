"""The options that several commands share. Each one's default is the plan's own."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer


def share(text: str) -> float:
    """A share, as `0.01` or `1%`. Raises BadParameter."""
    number = text.strip().removesuffix("%")
    try:
        return float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is no share: give 0.01 or 1%") from None


Many = list[str] | None
Numbers = list[int] | None

ConfigOption = Annotated[
    str | None,
    typer.Option("--config", help="A plan file, or a shipped plan: gate, first-thread, second-thread."),
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", help="Folder of the run. [default: results/<time>-<target>]")
]
CountOption = Annotated[
    int | None, typer.Option("--prompts", help="Distinct prompts per cell. [default: 30]")
]
HitsOption = Annotated[
    int | None, typer.Option("--hits", help="Cached re-sends per prompt and length. [default: 2]")
]
PositionOption = Annotated[
    Numbers, typer.Option("--position", help="Where hits resume, in tokens; repeatable. [default: 192]")
]
TailOption = Annotated[Numbers, typer.Option("--tail", help="A suspect tail, in tokens; repeatable.")]
ControlOption = Annotated[
    Numbers, typer.Option("--control", help="A path-control tail, in tokens; repeatable.")
]
LengthOption = Annotated[Numbers, typer.Option("--length", help="An exact prompt length; repeatable.")]
FamilyOption = Annotated[Many, typer.Option("--family", help="Only prompts of this family; repeatable.")]
FolderOption = Annotated[Path | None, typer.Option("--prompt-folder", help="Prompt files of your own.")]
TokenizerOption = Annotated[
    str | None,
    typer.Option("--tokenizer", help="A local folder or hub id. [default: the server's /tokenize]"),
]
ThinkingOption = Annotated[
    bool | None, typer.Option("--thinking/--no-thinking", help="The template's thinking switch.")
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of every random choice. [default: 0]")]
MinutesOption = Annotated[
    float | None, typer.Option("--max-minutes", help="End with a partial report after so long.")
]
FailFastOption = Annotated[
    bool | None, typer.Option("--fail-fast", help="Stop at the first proof of corruption.")
]
RateOption = Annotated[
    float | None,
    typer.Option(
        "--max-rate",
        parser=share,
        help="Share of corrupt prompts a pass excludes, 0.01 or 1%. [default: 0.1]",
    ),
]
GpuOption = Annotated[
    str | None,
    typer.Option("--gpu", help="GPU of the server, such as mi350x: its affected tails become suspects."),
]
FaultOption = Annotated[
    str | None,
    typer.Option(
        "--fault", help="Embedded engine: split-k-nan (default), split-k, none, ...; `NAME:rate=0.2,NAME`."
    ),
]
StrategyOption = Annotated[
    str | None, typer.Option("--strategy", help="Embedded engine: extra_buffer (default) or no_buffer.")
]
CuOption = Annotated[
    int | None, typer.Option("--cu", help="Embedded engine: compute units, 16, 32 or 64. [default: 16]")
]
NoiseOption = Annotated[
    float | None, typer.Option("--noise", help="Embedded engine: run-to-run noise. [default: 0]")
]
ProfileOption = Annotated[
    str | None, typer.Option("--profile", help="Embedded engine: quiz-state (default), quiz-kv, random.")
]
SpeculativeOption = Annotated[
    bool | None, typer.Option("--speculative", help="Embedded engine: decode with a draft and verify it.")
]
DeterministicOption = Annotated[
    bool | None,
    typer.Option("--deterministic", help="Embedded engine: every token in a forward of its own (slow)."),
]

EngineOption = Annotated[
    str | None,
    typer.Option("--engine", help="auto (default), sglang, vllm, llamacpp or openai: the server's API."),
]
HeaderFileOption = Annotated[
    Path | None, typer.Option("--header-file", help="Headers to send, one `Name: value` a line.")
]
CaFileOption = Annotated[
    Path | None, typer.Option("--ca-file", help="Certificate authorities to trust, in PEM form.")
]
ServedModelOption = Annotated[
    str | None, typer.Option("--served-model", help="The name the server must serve its model under.")
]
PaceOption = Annotated[float | None, typer.Option("--rate", help="Requests of any kind per second, at most.")]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", help="Seconds one request may take. [default: 120]")
]


def _plan_options(
    config: ConfigOption = None,
    probe: Annotated[
        Many,
        typer.Option(
            "--probe",
            help="resend, decode, batch, draft, impact, tasks, speed, equivalence, sweep, checkpoint or all; "
            "repeatable. [default: resend and a short decode]",
        ),
    ] = None,
    skip: Annotated[Many, typer.Option("--skip", help="Leave out this probe; repeatable.")] = None,
    prompts: CountOption = None,
    hits: HitsOption = None,
    position: PositionOption = None,
    tail: TailOption = None,
    control: ControlOption = None,
    length: LengthOption = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", help="Tokens to decode, over all prompts. [default: 2048]")
    ] = None,
    exact: Annotated[
        bool | None, typer.Option("--exact", help="Cold, hit and decode must be bit-identical.")
    ] = None,
    sweep: Annotated[
        bool | None, typer.Option("--sweep", help="Map every tail and many lengths as well.")
    ] = None,
    task_file: Annotated[
        list[Path] | None,
        typer.Option("--task-file", help="Graded questions (JSONL) to ask cold and cached; repeatable."),
    ] = None,
    task_limit: Annotated[
        int | None, typer.Option("--task-limit", help="Only the first N questions of each file.")
    ] = None,
    max_slowdown: Annotated[
        float | None,
        typer.Option("--max-slowdown", parser=share, help="Fail a guard that costs more, 0.05 or 5%."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference", help="A trusted run, saved reference or URL to hold cold answers against."
        ),
    ] = None,
    reference_any_model: Annotated[
        bool | None, typer.Option("--reference-any-model", help="Take a reference of another model.")
    ] = None,
    save_reference: Annotated[
        Path | None, typer.Option("--save-reference", help="Keep the cold answers in this file for others.")
    ] = None,
    family: FamilyOption = None,
    prompt_folder: FolderOption = None,
    tokenizer: TokenizerOption = None,
    thinking: ThinkingOption = None,
    seed: SeedOption = None,
    max_minutes: MinutesOption = None,
    fail_fast: FailFastOption = None,
    max_rate: RateOption = None,
) -> None:
    """The options of every command that has a plan; `commands.flags` says what they stand for."""


def with_plan_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the plan's options behind its own: it gets their values as `config` and `shared`."""
    own, more = inspect.signature(command), inspect.signature(_plan_options)
    kept = [value for value in own.parameters.values() if value.name not in ("config", "shared")]

    @wraps(command)
    def parsed(**given: Any) -> None:
        from fidelity import commands

        shared = {name: given.pop(name) for name in more.parameters}
        config = shared.pop("config")
        command(**given, config=config, shared=commands.flags(**shared))

    signature = own.replace(parameters=[*kept, *more.parameters.values()])
    parsed.__signature__ = signature  # type: ignore[attr-defined]
    parsed.__annotations__ = {value.name: value.annotation for value in signature.parameters.values()}
    return parsed
