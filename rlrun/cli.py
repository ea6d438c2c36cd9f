# SPDX-License-Identifier: Apache-2.0
"""The commands. No logic: each one reads its arguments and calls the module that does the work."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from rlrun.commands import look, simulate
from rlrun.commands.arguments import AsJson, ConfigDir, Overrides, RunDirArgument, Strict
from rlrun.errors import ConfigError, RlrunError, StorageError

app = typer.Typer(
    name="rlrun",
    help="Post-train language models by GRPO, on a laptop CPU or a GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def train(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, start nothing (as rlrun check).")
    ] = False,
) -> None:
    """Train a policy.

    Example: rlrun train +recipe=quickstart grpo.max_num_steps=20
    """
    if dry_run:
        check(overrides, config_dir)
        return
    from rlrun.config import load

    loaded = load(overrides or [], config_dir)
    from rlrun.assemble import train as run

    run(loaded)


@app.command()
def resume(run_dir: RunDirArgument, overrides: Overrides = None) -> None:
    """Go on with an interrupted run from its newest checkpoint.

    Example: rlrun resume runs/quickstart/20261129-120000 grpo.max_num_steps=60
    """
    from rlrun.assemble import resume as run

    run(run_dir, overrides or [])


@app.command(short_help="Check a run before it starts: data, rewards, sizes.")
def check(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Check a run before it starts: configuration, data, model, rewards, sizes.

    Example: rlrun check +recipe=quickstart
    """
    from rlrun.config import load

    try:
        loaded = load(overrides or [], config_dir)
    except ConfigError as error:
        if as_json:
            # Only here, since it takes torch along.
            from rlrun.preflight import problem_lines, to_json

            _out(to_json(problem_lines(error)))
        raise
    from rlrun.preflight import exit_code, preflight, render, to_json

    lines = preflight(loaded)
    if as_json:
        _out(to_json(lines))
    else:
        render(lines, sys.stdout)
    raise typer.Exit(exit_code(lines, strict))


@app.command()
def config(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    origin: Annotated[bool, typer.Option("--origin", help="Where each value comes from.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="JSON Schema of all keys.")] = False,
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option("--diff", help="Two run directories or recipes to compare."),
    ] = None,
) -> None:
    """Show the resolved run.

    Example: rlrun config +recipe=quickstart --origin
    """
    from rlrun.config import load, schema_json, show

    if schema:
        _out(json.dumps(schema_json(), indent=2, ensure_ascii=False))
    elif diff is not None:
        _out(show.diff_text(*diff, config_dir=config_dir))
    else:
        loaded = load(overrides or [], config_dir)
        _out(show.origin_text(loaded) if origin else loaded.yaml())


@app.command()
def recipes(
    name: Annotated[
        str | None,
        typer.Argument(help="Recipe to show; all are listed if unset.", show_default=False),
    ] = None,
    config_dir: ConfigDir = None,
) -> None:
    """List the recipes, or show one.

    Example: rlrun recipes quickstart
    """
    from rlrun.config import show

    _out(show.recipes_text(name, config_dir=config_dir))


@app.command(short_help="Score responses offline, a JSON line for each.")
def score(
    file: Annotated[Path, typer.Argument(help='JSONL of {"response", "gold"} or stored rollouts.')],
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
) -> None:
    """Score responses offline; one JSON line per row on stdout, in input order.

    Example: rlrun score answers.jsonl env=math
    """
    from rlrun.stored import score as score_stored

    typer.echo(str(score_stored(file, overrides or [], config_dir, sys.stdout)), err=True)


@app.command(name="eval", short_help="Evaluate a model or run: accuracy and pass@k.")
def evaluate(
    model_or_run: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_RUN",
            help="A run directory, a model's folder, rlrun:tiny, or a model's name on the hub.",
            show_default=False,
        ),
    ],
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    step: Annotated[
        int | None,
        typer.Option(help="Checkpoint of the run; the newest whole one if unset."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1, help="Samples per prompt; grpo.val_num_generations_per_prompt if unset."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the samples there, as JSON lines; a file there is replaced."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model or a run on data.validation: accuracy and pass@k with 95 % intervals.

    Of a run, its own settings and newest checkpoint are used. A model needs a recipe or overrides
    that say which data, environment and lengths. The table is on stderr, JSON on stdout.

    Example: rlrun eval runs/quickstart/20261129-120000 --samples 8 --json

    Example: rlrun eval rlrun:tiny +recipe=quickstart grpo.max_val_samples=100
    """
    from rlrun.console import Console
    from rlrun.eval_command import evaluate as run
    from rlrun.eval_command import print_report

    with Console(sys.stderr) as console:
        report = run(
            model_or_run,
            overrides or [],
            console,
            config_dir=config_dir,
            step=step,
            samples=samples,
            out=out,
        )
    print_report(report, sys.stderr)
    if as_json:
        _out(json.dumps(report.to_json(), indent=2, ensure_ascii=False))


@app.command(short_help="Write a policy as a Hugging Face folder.")
def export(
    run_dir: RunDirArgument,
    destination: Annotated[
        Path,
        typer.Argument(
            metavar="DEST", help="A folder that does not exist or is empty.", show_default=False
        ),
    ],
    step: Annotated[
        int | None, typer.Option(help="Checkpoint; the newest whole one if unset.")
    ] = None,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge/--adapter",
            help="Of a LoRA run: the adapter added to the weights, or the adapter alone.",
        ),
    ] = True,
    dtype: Annotated[str, typer.Option(help="Of the weights: float32 or bfloat16.")] = "float32",
) -> None:
    """Write a run's policy as a Hugging Face folder that transformers and vLLM load.

    Example: rlrun export runs/quickstart/20261129-120000 my-model --dtype bfloat16
    """
    from rlrun.console import Console
    from rlrun.export import export as run

    with Console(sys.stderr) as console:
        run(run_dir, destination, console, step=step, merge=merge, dtype=dtype)


@app.command(short_help="Prove that every prompt was used exactly once.")
def audit(run_dir: RunDirArgument) -> None:
    """Prove that every prompt of an epoch was used exactly once, over all restarts.

    Example: rlrun audit runs/quickstart/20261129-120000
    """
    from rlrun.audit import audit as audit_run

    report = audit_run(run_dir)
    _out(report.text())
    report.raise_if_failed()


for command, summary in (
    (look.view, "Look at steps and rollouts in the terminal."),
    (look.report, "Write a report or comparison of runs as HTML."),
    (look.plot, "Draw curves of runs in the terminal or as PNG."),
    (simulate.simulate, "Foresee what grpo=async would bring."),
):
    app.command(short_help=summary)(command)


@app.command(short_help="Run recipes, and assert what they promise.")
def nightly(
    tier: Annotated[
        str, typer.Option(help="Hardware of the runs: cpu, 1gpu, 1node or multinode.")
    ] = "cpu",
    recipes: Annotated[
        str | None,
        typer.Option(
            help="Names or files of recipes, separated by commas; unset: all that have a nightly "
            "file."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the nightly [default: nightly/DATE-TIME]; one that was interrupted "
            "goes on."
        ),
    ] = None,
    trend: Annotated[
        Path | None,
        typer.Option(help="The trend file [default: trend.jsonl beside the folder]"),
    ] = None,
    config_dir: ConfigDir = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the nightly files and list the runs.")
    ] = False,
) -> None:
    """Run recipes as their nightly files say, and assert what they promise.

    Exit code 1 if an assertion fails. The folder gets junit.xml, summary.md, and the run
    directories; the summary is on stdout.

    Example: rlrun nightly --tier cpu --recipes quickstart
    """
    from rlrun.nightly.command import default_out, nightly_command

    chosen = None if recipes is None else [name.strip() for name in recipes.split(",")]
    folder = default_out() if out is None else out
    _out(nightly_command(tier, chosen, folder, trend, config_dir, dry_run=dry_run))


gym = typer.Typer(
    name="gym",
    help="""NeMo Gym: make the environment that its servers run in, or run servers by themselves.

    Example: rlrun gym setup
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(gym, short_help="NeMo Gym: set up its servers, or run them.")


@gym.command(name="setup")
def gym_setup(
    venv: Annotated[
        Path, typer.Option(help="Folder of the virtual environment, as env.venv names it.")
    ] = Path(".gym-venv"),
    python: Annotated[
        str | None, typer.Option(help="Interpreter to make it with; rlrun's own if unset.")
    ] = None,
) -> None:
    """Make the virtual environment of NeMo Gym's servers, by pip: two minutes, 1 GB.

    Example: rlrun gym setup --venv .gym-venv
    """
    from rlrun.gym.setup import set_up

    set_up(venv, python, _err)


@gym.command(name="serve")
def gym_serve(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    run: Annotated[
        Path | None,
        typer.Option(help="Run directory whose policy the agents ask; waited for if need be."),
    ] = None,
) -> None:
    """Run the servers of a recipe's env.config_paths until Ctrl-C; JSON says where they are.

    Example: rlrun gym serve +recipe=gym_quickstart --run runs/mine
    """
    from rlrun.gym.serve import serve

    serve(overrides or [], config_dir, run, _err, _out)


def _err(text: str) -> None:
    typer.echo(text, err=True)


def _out(text: str) -> None:
    typer.echo(text)


def command_names() -> list[str]:
    """Every command, as it is typed; of a group its name."""
    commands = [
        info.name or info.callback.__name__
        for info in app.registered_commands
        if info.callback is not None
    ]
    groups = [info.typer_instance for info in app.registered_groups]
    return commands + [str(group.info.name) for group in groups if group is not None]


_COMPARES = (
    "rlrun report RUN_DIR RUN_DIR compares runs, rlrun config --diff RUN_DIR RUN_DIR their settings"
)


def _misuse(error: TyperException) -> str:
    """The message about a command line that cannot be read."""
    if sys.argv[1:] in ([], ["gym"]):
        return error.format_message()
    command = " ".join(["rlrun", *(name for name in sys.argv[1:2] if name in command_names())])
    what = error.format_message().rstrip(".")
    if sys.argv[1:2] == ["compare"]:
        what = f"No such command 'compare'. {_COMPARES}"
    end = "" if what.endswith("?") else "."
    return f"error: {command}: {what}{end} {command} --help says what it takes."


def main() -> None:
    """Runs a command; errors end in one line each on stderr and the documented exit code."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("rlrun", sys.argv[1:]) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except TyperException as error:
        typer.echo(_misuse(error), err=True)
        sys.exit(error.exit_code)
    except ConfigError as error:
        for problem in error.problems:
            typer.echo(f"error: {problem}", err=True)
        sys.exit(error.exit_code)
    except RlrunError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has what it wanted; nothing is wrong with the command. What is
        # still in the buffer goes nowhere, or the interpreter would complain of it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        typer.echo(f"error: output: {error.strerror or error}.", err=True)
        sys.exit(StorageError.exit_code)
    # The last boundary: whatever arrives here is a defect of rlrun, not of its input.
    except Exception as error:  # noqa: BLE001
        if os.environ.get("RLRUN_TRACEBACK"):
            raise
        typer.echo(
            f"error: rlrun: {type(error).__name__}: {error}. This is a defect of rlrun; "
            "RLRUN_TRACEBACK=1 shows where, and so does log.txt of a run that had started.",
            err=True,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
