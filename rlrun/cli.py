# SPDX-License-Identifier: Apache-2.0
"""The program ``rlrun``: its commands, and how each of them ends.

The commands are in commands/. They have no logic: each one reads its arguments and calls the
module that does the work.
"""

from __future__ import annotations

import io
import os
import re
import sys

import typer
from typer.exceptions import TyperException

from rlrun.commands import gym, look, nightly, policy, run, simulate
from rlrun.commands.output import tell_error
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

# In the order in which --help lists them.
app.command()(run.train)
app.command()(run.resume)
app.command(short_help="Check a run before it starts: data, rewards, sizes.")(run.check)
app.command()(run.config)
app.command()(run.recipes)
app.command(short_help="Score responses offline, a JSON line for each.")(policy.score)
app.command(name="eval", short_help="Evaluate a model or run: accuracy and pass@k.")(
    policy.evaluate
)
app.command(short_help="Write a policy as a Hugging Face folder.")(policy.export)
app.command(short_help="Prove that every prompt was used exactly once.")(look.audit)
app.command(short_help="Look at steps and rollouts in the terminal.")(look.view)
app.command(short_help="Write a report or comparison of runs as HTML.")(look.report)
app.command(short_help="Draw curves of runs in the terminal or as PNG.")(look.plot)
app.command(short_help="Foresee what grpo=async would bring.")(simulate.simulate)
app.command(short_help="Run recipes, and assert what they promise.")(nightly.nightly)
app.add_typer(gym.gym, short_help="NeMo Gym: set up its servers, or run them.")


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
    if dashed := [word for word in sys.argv[1:] if re.fullmatch(r"--?[\w/]+[./][\w./]*=.*", word)]:
        return f"error: {dashed[0]}: a setting has no dashes. Write {dashed[0].lstrip('-')}."
    if sys.argv[1:2] == ["compare"]:
        what = f"No such command 'compare'. {_COMPARES}"
    end = "" if what.endswith("?") else "."
    return f"error: {command}: {what}{end} {command} --help says what it takes."


def main() -> None:
    """Runs a command; errors end in one line each on stderr and the documented exit code."""
    command = typer.main.get_command(app)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A result may hold what the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with command.make_context("rlrun", sys.argv[1:]) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except TyperException as error:
        tell_error(_misuse(error))
        sys.exit(error.exit_code)
    except ConfigError as error:
        for problem in error.problems:
            tell_error(f"error: {problem}")
        sys.exit(error.exit_code)
    except RlrunError as error:
        tell_error(f"error: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has what it wanted; nothing is wrong with the command. What is
        # still in the buffer goes nowhere, or the interpreter would complain of it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        where = error.filename if error.filename is not None else "output"
        tell_error(f"error: {where}: {error.strerror or error}.")
        sys.exit(StorageError.exit_code)
    # The last boundary: whatever arrives here is a defect of rlrun, not of its input.
    except Exception as error:
        if os.environ.get("RLRUN_TRACEBACK"):
            raise
        tell_error(
            f"error: rlrun: {type(error).__name__}: {error}. This is a defect of rlrun; "
            "RLRUN_TRACEBACK=1 shows where, and so does log.txt of a run that had started."
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
