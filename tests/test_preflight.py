# SPDX-License-Identifier: Apache-2.0
"""Preflight: what passes, what fails, what cannot be told, and what to do about it."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from rlrun.cli import main
from rlrun.config import load
from rlrun.derived import plan_in_words
from rlrun.inputs import read_prompts
from rlrun.preflight import (
    CheckLine,
    Verdict,
    environment,
    exit_code,
    preflight,
    render,
    to_json,
)
from rlrun.preflight.lines import Piece

MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 280,
    "hidden_size": 65536,
    "intermediate_size": 262144,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
}
"""About four trillion parameters: more than any machine's memory."""


def lines(*overrides: str) -> list[CheckLine]:
    return preflight(load(["+recipe=quickstart", *overrides]))


def found(name: str, *overrides: str) -> CheckLine:
    """The one line of that name."""
    (line,) = [line for line in lines(*overrides) if line.name == name]
    return line


def test_advantages_without_a_bound_are_told_where_the_run_grades_rewards() -> None:
    shaping = "grpo.overlong_shaping"
    graded = (f"{shaping}.enabled=true", f"{shaping}.max_response_tokens=256")
    unbounded = "advantage.baseline=leave_one_out"
    clips = ("advantage.clip_low=-5", "advantage.clip_high=5")

    stream = read_prompts(load(["+recipe=quickstart"]).config, lambda notice: None).stream

    def told(*flags: str) -> list[str]:
        plan = plan_in_words(load(["+recipe=quickstart", *flags]).config, stream)
        return [text.split()[0] for text in plan if "grades rewards by length" in text]

    assert told(*graded, unbounded) == ["grpo.overlong_shaping"]
    effort = ("grpo.effort.low_string=brief", "grpo.effort.low_weight=1")
    assert told(*effort, unbounded) == ["grpo.effort"]
    assert not told(*effort[:1], unbounded)
    assert not told(*graded, "grpo.overlong_shaping.penalty=0", unbounded)
    assert not told(*graded, unbounded, *clips)
    assert not told(*graded)
    assert not told(unbounded)


def test_a_plan_that_the_rows_end_says_after_how_many_steps() -> None:
    plan = " ".join(line.detail for line in lines("data.train.limit=20") if line.name == "plan")
    assert "at most 2 steps of 16 prompts" in plan
    assert "at most 20 prompts in all (grpo.max_num_epochs)" in plan


def write_model(folder: Path, config: str) -> None:
    """A model's folder whose weights hold nothing."""
    (folder / "config.json").write_text(config)
    save_file({}, folder / "model.safetensors")


@pytest.fixture(scope="module")
def quickstart() -> list[CheckLine]:
    return lines()


def test_the_quickstart_passes_in_every_part(quickstart: list[CheckLine]) -> None:
    assert [line.name for line in quickstart] == [
        "configuration",
        "run directory",
        "tokenizer and data",
        "plan",
        "plan",
        "sample",
        "environment",
        "model",
        "memory",
        "split",
        "async",
    ]
    assert all(line.verdict is Verdict.PASS for line in quickstart)
    assert "weights 1.3 MiB" in next(line.detail for line in quickstart if line.name == "memory")
    assert not any(line.refused(strict=True) for line in quickstart)


def test_the_sample_is_a_real_prompt_as_the_model_reads_it(quickstart: list[CheckLine]) -> None:
    (sample,) = [line for line in quickstart if line.name == "sample"]
    prompt, response = sample.sample
    assert (prompt.trained, response.trained) == (False, True)
    assert prompt.text.endswith("?<|im_end|>\n<|im_start|>assistant\n")
    assert response.text.endswith("<|im_end|>")
    assert "generator:addition/train:" in sample.detail


def shown(line: CheckLine) -> str:
    file = io.StringIO()
    render([line], file)
    return file.getvalue()


SAMPLE = CheckLine(
    "sample", Verdict.PASS, "a row", sample=(Piece("as\x1b[2Jked", False), Piece("said", True))
)


def test_what_is_trained_of_a_sample_is_marked_in_a_file() -> None:
    assert shown(SAMPLE) == "pass       sample: a row\nas\\x1b[2Jked>>>said<<<\n"


@pytest.mark.parametrize(
    ("no_color", "sample"),
    [("", "\x1b[2mas\\x1b[2Jked\x1b[0m\x1b[32msaid\x1b[0m"), ("1", "as\\x1b[2Jked>>>said<<<")],
)
def test_on_a_terminal_colours_mark_it_unless_they_are_not_wanted(
    no_color: str, sample: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    for name, value in (("NO_COLOR", no_color), ("TERM", "xterm"), ("COLUMNS", "40")):
        monkeypatch.setenv(name, value)
    file = Terminal()
    long = CheckLine("disk", Verdict.FAIL, "full " * 20, "Delete " * 10, 7)
    render([SAMPLE, long], file)
    text = file.getvalue()
    assert sample in text
    assert ("\x1b[1;31m" in text) == (no_color == "")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    assert max(map(len, plain)) <= 40
    assert plain[-1].startswith(" " * 11 + "Delete")


def test_lines_are_json_and_text(quickstart: list[CheckLine]) -> None:
    fields = json.loads(to_json(quickstart))
    assert {frozenset(line) for line in fields} == {
        frozenset({"name", "verdict", "detail", "remedy", "exit_code", "sample"})
    }
    text = shown(CheckLine("disk", Verdict.FAIL, "it is full", "Delete something", 7))
    assert text == "fail       disk: it is full\n           -> Delete something\n"


def test_the_exit_code_is_that_of_the_first_failure_whatever_is_unverified_before_it() -> None:
    good, open_question = CheckLine("a", Verdict.PASS, ""), CheckLine("b", Verdict.UNVERIFIED, "")
    open_question = replace(open_question, exit_code=2)
    failures = [CheckLine("c", Verdict.FAIL, "", "", 4), CheckLine("d", Verdict.FAIL, "", "", 7)]
    assert exit_code([good, open_question, *failures], strict=True) == 4
    assert exit_code([good, open_question], strict=True) == 2
    assert exit_code([good, open_question], strict=False) == 0


def test_a_configuration_that_cannot_be_read_is_json_as_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ["grpo.sede=1", "loss=gpso"]
    monkeypatch.setattr("sys.argv", ["rlrun", "check", "+recipe=quickstart", *wrong, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert ended.value.code == 2
    assert {line["verdict"] for line in found} == {"fail"}
    assert len(found) == err.count("error: ") >= 1


# --- what fails -----------------------------------------------------------------------------------


def test_a_run_directory_that_holds_a_run_fails(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    line = found("run directory", f"run_dir={tmp_path}")
    assert (line.verdict, line.exit_code) == (Verdict.FAIL, 7)
    assert "rlrun resume" in line.remedy


def test_a_run_directory_below_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = found("run directory", f"run_dir={tmp_path / 'file' / 'run'}")
    assert (line.verdict, line.exit_code) == (Verdict.FAIL, 7)


def test_data_that_cannot_be_read_fails_and_the_rest_is_still_looked_at(tmp_path: Path) -> None:
    source = tmp_path / "gone.jsonl"
    result = lines("data.train.split=null", f"data.train.source={source}")
    assert [line.name for line in result if line.refused(strict=False)] == ["tokenizer and data"]
    (failed,) = [line for line in result if line.verdict is Verdict.FAIL]
    assert str(source) in failed.detail
    assert failed.exit_code == 3
    assert {"model", "memory"} <= {line.name for line in result}


def test_a_trajectory_may_be_as_long_as_the_context_and_no_longer() -> None:
    assert not any(line.refused(True) for line in lines("policy.max_total_sequence_length=2048"))
    failed = [
        line
        for line in lines("policy.max_total_sequence_length=2049")
        if line.verdict is Verdict.FAIL
    ]
    assert [line.exit_code for line in failed] == [2]
    assert "2049" in failed[0].detail and "2048" in failed[0].remedy


def test_a_model_without_its_weights_fails(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    tokenizer = "policy.tokenizer=rlrun:tiny"
    line = found("model", f"policy.model={tmp_path}", tokenizer)
    assert (line.verdict, line.exit_code) == (Verdict.FAIL, 3)
    assert "weights" in line.detail


def test_a_model_that_does_not_fit_fails_without_being_loaded(tmp_path: Path) -> None:
    write_model(tmp_path, json.dumps(MODEL))
    result = lines(f"policy.model={tmp_path}", "policy.tokenizer=rlrun:tiny")
    (memory,) = [line for line in result if line.name == "memory"]
    assert (memory.verdict, memory.exit_code) == (Verdict.FAIL, 2)
    assert "GiB" in memory.detail and memory.remedy
    assert all(line.verdict is Verdict.PASS for line in result if line is not memory)


def test_the_reference_model_counts_for_memory(tmp_path: Path) -> None:
    write_model(tmp_path, json.dumps(MODEL))
    policy = (f"policy.model={tmp_path}", "policy.tokenizer=rlrun:tiny")
    without = found("memory", *policy)
    with_reference = found("memory", *policy, "loss.reference_policy_kl_penalty=0.1")
    assert weights_gib(with_reference) == pytest.approx(2 * weights_gib(without), rel=1e-3)


def weights_gib(line: CheckLine) -> float:
    return float(line.detail.partition("(weights ")[2].partition(" GiB")[0].replace(",", ""))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"model_type": "nonsense"}', "nonsense"),
        ("{}", "model_type"),
        ("not json", "config.json"),
        ('{"model_type": "vit"}', "ViT"),
    ],
)
def test_a_model_that_transformers_does_not_know_fails(
    tmp_path: Path, text: str, said: str
) -> None:
    write_model(tmp_path, text)
    result = lines(f"policy.model={tmp_path}", "policy.tokenizer=rlrun:tiny")
    (model,) = [line for line in result if line.name == "model"]
    assert (model.verdict, model.exit_code) == (Verdict.FAIL, 3)
    assert said in model.detail and str(tmp_path) in model.detail


# --- rewards --------------------------------------------------------------------------------------

FUNCTIONS = """
import time

def always_one(response, answer):
    return 1.0

def broken(response, answer):
    return {"reward": None}

def slow(response, answer):
    time.sleep(30)
    return 1.0
"""

DIALOGUE = """
import asyncio

from rlrun.interfaces import Environment
from rlrun.types import EnvStep

class Dialogue(Environment):
    async def step(self, episode):
        return EnvStep(messages=({"role": "user", "content": "Go on."},))

    async def close(self):
        pass

class Raises(Dialogue):
    async def step(self, episode):
        raise OSError("no route to the judge")

class Opened(Dialogue):
    async def open(self, policy):
        self.right = 1.0

    async def step(self, episode):
        return EnvStep(reward=self.right if episode.prompt.row.answer in episode.response else 0.0)

class NeverOpens(Dialogue):
    async def open(self, policy):
        await asyncio.Event().wait()
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "functions.py").write_text(FUNCTIONS)
    (folder / "dialogue.py").write_text(DIALOGUE)
    return folder


def rewards(code: Path, key: str, name: str, *overrides: str) -> CheckLine:
    file = "functions.py" if key == "reward_function" else "dialogue.py"
    return found("environment", "env=python", f"env.{key}={code / file}:{name}", *overrides)


def test_a_reward_that_does_not_tell_right_from_wrong_is_unverified(code: Path) -> None:
    line = rewards(code, "reward_function", "always_one")
    assert line.verdict is Verdict.UNVERIFIED
    assert not line.refused(strict=False)
    assert line.refused(strict=True)


def test_an_environment_that_goes_on_is_unverified(code: Path) -> None:
    line = rewards(code, "environment", "Dialogue")
    assert line.verdict is Verdict.UNVERIFIED
    assert "another turn" in line.detail and "grpo.max_rollout_turns=1" in line.detail
    assert "grpo.max_rollout_turns" in line.remedy
    line = rewards(code, "environment", "Dialogue", "grpo.max_rollout_turns=2")
    assert "another turn" in line.detail and "scale=smoke" in line.remedy


@pytest.mark.parametrize(
    ("key", "name", "said"),
    [
        ("reward_function", "broken", "None"),
        ("environment", "Raises", "no route to the judge"),
    ],
)
def test_a_reward_that_cannot_be_computed_fails_with_the_original_error(
    code: Path, key: str, name: str, said: str
) -> None:
    line = rewards(code, key, name)
    assert (line.verdict, line.exit_code) == (Verdict.FAIL, 4)
    assert said in line.detail


def test_an_environment_is_opened_before_it_is_asked(code: Path) -> None:
    line = rewards(code, "environment", "Opened")
    assert line.verdict is Verdict.PASS and "scores 1.0" in line.detail


def test_an_environment_that_never_opens_fails_in_the_end(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "ENV_TIMEOUT_S", 0.2)
    line = rewards(code, "environment", "NeverOpens")
    assert (line.verdict, line.exit_code) == (Verdict.FAIL, 4)
    assert "did not open within 0.2 s" in line.detail


def test_a_reward_that_takes_too_long_fails(code: Path) -> None:
    line = rewards(code, "reward_function", "slow", "env.timeout_s=0.1")
    assert (line.verdict, line.exit_code) == (Verdict.FAIL, 4)
    assert "0.1 s" in line.detail


def test_an_environment_that_never_answers_fails_in_the_end(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "ENV_TIMEOUT_S", 0.1)
    line = rewards(code, "reward_function", "slow")
    assert (line.verdict, line.exit_code) == (Verdict.FAIL, 4)
    assert "no answer within 0.1 s" in line.detail


# --- what cannot be told here ---------------------------------------------------------------------


def test_a_recipe_for_a_cluster_is_planned_without_its_model_or_gpus() -> None:
    found_lines = {line.name: line for line in preflight(load(["+recipe=nanov3"]))}
    assert not any(line.refused(strict=False) for line in found_lines.values())
    assert found_lines["tokenizer and data"].verdict is Verdict.UNVERIFIED
    assert found_lines["model"].detail.startswith("NemotronHForCausalLM, 31,577,937,344 parameters")
    assert "256 GPUs on 32 nodes: 64 to train and 192 to sample" in found_lines["split"].detail
    for name in ("memory", "engine memory", "step time", "async"):
        assert found_lines[name].verdict is Verdict.PASS
    assert "2048 answers of 25.2 million tokens" in found_lines["step time"].detail
    assert "it would need an age of" in found_lines["async"].detail


def test_a_plan_that_does_not_fit_fails_and_says_what_would() -> None:
    few = preflight(load(["+recipe=nanov3", "cluster.num_learner_ranks=4"]))
    (memory,) = [line for line in few if line.name == "memory"]
    assert (memory.verdict, memory.exit_code) == (Verdict.FAIL, 2)
    assert "cluster.num_learner_ranks" in memory.remedy


def test_what_is_offloaded_counts_for_the_machine() -> None:
    ray = ("cluster=ray", "cluster.gpus_per_node=4", "cluster.num_learner_ranks=3")
    found_lines = {one.name: one for one in lines(*ray, "policy.fsdp.cpu_offload=true")}
    assert "weights" not in found_lines["memory"].detail
    assert "optimizer of the ranks are there too" in found_lines["machine memory"].detail


def test_packing_is_refused_where_state_would_leak() -> None:
    """Of a model that says so only once it is built: others are refused with the configuration."""
    loaded = load(["+recipe=nanov3"])
    packed = replace(loaded.config.policy, sequence_packing=True)
    lines_of = preflight(replace(loaded, config=replace(loaded.config, policy=packed)))
    assert any("carry their state" in line.detail for line in lines_of if line.verdict == "fail")


def test_what_a_recipe_says_of_a_model_must_be_true_of_the_model() -> None:
    wrong = [
        one
        for one in lines(
            "policy.architecture.model_type=qwen3", "policy.architecture.hidden_size=64"
        )
        if one.name == "model files"
    ]
    assert [one.verdict for one in wrong] == [Verdict.FAIL]
    assert "hidden_size is 64" in wrong[0].detail


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("num_threads=3",), "3 threads to train and 3 to sample, in turns"),
        (("num_threads=1", "grpo=async"), "1 thread to train and 1 to sample, at once"),
        (
            ("cluster=ray", "cluster.num_engines=2"),
            "1 to train and 2 to sample, 1 core each, apart",
        ),
    ],
)
def test_the_split_of_cores_is_said(overrides: tuple[str, ...], said: str) -> None:
    assert found("split", *overrides).detail.startswith(said)


def test_the_variable_of_openmp_counts_where_num_threads_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert found("split").detail.startswith("5 threads to train and 5 to sample")
    assert found("split", "num_threads=4").detail.startswith("4 threads to train and 4 to sample")


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("logging.wandb.project=mine", "logging.wandb.enabled=false"),
        ("grpo.reward_penalties.think_open=reason", "no penalty looks for reasoning"),
        ("policy.fsdp.cpu_offload=true", "one rank"),
        ("grpo.overlong_shaping.penalty=2", "grpo.overlong_shaping.enabled=false"),
        ("loss.kl_input_clamp=5", "loss.reference_policy_kl_penalty=0"),
        ("policy.lora.rank=4", "policy.lora.enabled=false"),
        ("generation.http.port=8000", "generation.expose_http_server=false"),
    ],
)
def test_a_key_that_nothing_reads_fails(override: str, why: str) -> None:
    failed = [line for line in lines(override) if line.verdict is Verdict.FAIL]
    assert [line.exit_code for line in failed] == [2]
    assert override in failed[0].detail and why in failed[0].detail
