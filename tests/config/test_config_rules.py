# SPDX-License-Identifier: Apache-2.0
import pytest

from rlrun.config import load, parse_duration
from rlrun.config.keys import all_keys
from rlrun.config.rules.rule import RULES
from rlrun.config.variants import discover
from tests.config.config_problems import QUICK, only_problem, problems

STOP = ("grpo.stop_at_validation_metric=validation/accuracy", "grpo.stop_at_validation_threshold=1")
NO_METRIC = "checkpointing.metric=null"
NO_VALIDATION = ("grpo.val_period=0", "grpo.val_at_start=false", "grpo.val_at_end=false")
ONLY_AT_START = ("grpo.val_period=0", "grpo.val_at_start=true", "grpo.val_at_end=false")
ONLY_AT_END = ("grpo.val_period=0", "grpo.val_at_start=false", "grpo.val_at_end=true")

BROKEN: dict[str, list[tuple[tuple[str, ...], str]]] = {
    "batch_divides": [
        (
            (
                "grpo.num_prompts_per_step=6",
                "grpo.num_generations_per_prompt=4",
                "policy.train_global_batch_size=16",
            ),
            "24 % 16 = 8",
        ),
        (("policy.train_global_batch_size=256",), "fewer than"),
    ],
    "trajectory_fits_microbatch": [(("policy.train_micro_batch_tokens=63",), "63 // 64 = 0")],
    "response_fits_context": [(("generation.max_new_tokens=65",), "65 is above")],
    "baseline_needs_group": [
        (("grpo.num_generations_per_prompt=1",), "only advantages of 0"),
        (
            (
                "grpo.num_generations_per_prompt=1",
                "advantage.baseline=leave_one_out",
                "advantage.normalize=false",
            ),
            "leave_one_out",
        ),
    ],
    "dynamic_sampling_needs_group": [
        (
            (
                "grpo.use_dynamic_sampling=true",
                "grpo.num_generations_per_prompt=1",
                "advantage.baseline=none",
                "advantage.normalize=false",
            ),
            "one trajectory alone",
        )
    ],
    "reference_is_computed": [
        (
            (
                "loss.reference_policy_kl_penalty=0.1",
                "grpo.skip_reference_policy_logprobs_calculation=true",
            ),
            "needs the reference policy",
        )
    ],
    "run_ends": [(("grpo.max_num_steps=null", "grpo.max_num_epochs=null"), "no end")],
    "shaping_has_length": [(("grpo.overlong_shaping.enabled=true",), "max_response_tokens")],
    "validation_has_rows": [
        (("data.validation.source=null", "data.validation.split=null"), "source is null")
    ],
    "stop_is_complete": [
        (("grpo.stop_at_validation_threshold=1",), "no stop_at_validation_metric"),
        ((STOP[0],), "no stop_at_validation_threshold"),
    ],
    "stop_metric_exists": [
        (("grpo.stop_at_validation_metric=accuracy", STOP[1]), "did you mean validation/accuracy"),
        (
            ("grpo.stop_at_validation_metric=validation/pass_k", STOP[1]),
            "val_num_generations_per_prompt",
        ),
    ],
    "stop_is_validated": [
        ((*STOP, *NO_VALIDATION, NO_METRIC), "grpo.val_period=0"),
        ((*STOP, *ONLY_AT_START, NO_METRIC), "grpo.val_period=0"),
        ((*STOP, *ONLY_AT_END), "grpo.val_period=0"),
    ],
    "checkpoint_metric_is_logged": [
        (("checkpointing.metric=val:accuracy",), "did you mean validation/accuracy"),
        (("checkpointing.metric=validation/pass_k",), "val_num_generations_per_prompt"),
        (("checkpointing.metric=train/kl_to_reference",), "loss.reference_policy_kl_penalty"),
        (("checkpointing.metric=perf/speedup_over_sync",), "asynchronous schedules"),
        (("checkpointing.metric=refit/probe_max_abs_diff",), "separate engines"),
    ],
    "checkpoint_metric_is_validated": [
        (NO_VALIDATION, "never validates"),
        (ONLY_AT_START, "never validates what it saves"),
        (("checkpointing.metric=validation/reward/format", *ONLY_AT_START), "what it saves"),
    ],
    "adapters_are_whole": [
        (
            ("checkpointing.layout=sharded", "policy.lora.enabled=true"),
            "checkpointing.layout=sharded with policy.lora.enabled=true",
        )
    ],
    "deadline_saves": [
        (
            (
                "checkpointing.checkpoint_must_save_by=00:03:40:00",
                "checkpointing.enabled=false",
            ),
            "checkpointing.enabled=false",
        )
    ],
    "agents_find_the_policy": [
        (
            ("env=gym", "env.agents={a: 'http://h'}", "generation.expose_http_server=false"),
            "agents could not ask the policy",
        ),
    ],
    "calls_are_parsed": [
        (("grpo.invalid_tool_call_advantage=-1",), "nothing parses calls"),
        (
            (
                "grpo.invalid_tool_call_advantage=-1",
                "env=gym",
                "env.agents={a: 'http://h'}",
                "generation.expose_http_server=true",
            ),
            "nothing parses calls",
        ),
    ],
    "routers_are_there": [
        (("policy.freeze_moe_router=true",), "policy.freeze_moe_router=true, and policy.model="),
        (("policy.moe_router_fp32=true",), "rlrun:tiny has no router"),
    ],
    "packed_rows_stay_apart": [
        (
            ("policy.model=rlrun:tiny-hybrid", "policy.sequence_packing=true"),
            "carry their state from one packed trajectory to the next",
        )
    ],
    "model_continues_a_text": [
        (("policy.architecture={model_type: bert}",), "is an encoder, which sees what comes after"),
        (("policy.architecture={is_encoder_decoder: true}",), "is an encoder-decoder model"),
    ],
    "model_is_no_choice": [(("policy.model=tiny",), "name of a choice")],
    "stale_is_corrected": [
        (("grpo=async", "correction.enabled=false"), "as if they were fresh"),
    ],
    "engine_fits_its_place": [
        (
            ("generation=vllm", "cluster=ray", "generation.num_engines=2"),
            "one place, and so one GPU",
        ),
    ],
    "colocated_takes_turns": [
        (("grpo=async", "cluster=ray", "cluster.colocated=true"), "they work at once"),
    ],
}


def test_every_rule_has_a_broken_example_and_known_keys() -> None:
    discover()
    assert {rule.id for rule in RULES} == set(BROKEN)
    assert len(RULES) == len(BROKEN)
    assert {key for rule in RULES for key in rule.keys} <= all_keys()


@pytest.mark.parametrize(("flags", "what"), [case for cases in BROKEN.values() for case in cases])
def test_a_broken_rule_is_the_only_problem(flags: tuple[str, ...], what: str) -> None:
    problem = only_problem([QUICK, *flags])
    assert what in problem.what
    assert problem.where in flags
    assert problem.remedy


@pytest.mark.parametrize(
    "flags",
    [
        ("generation.max_new_tokens=64",),
        ("policy.train_micro_batch_tokens=64",),
        ("policy.train_global_batch_size=128",),
        ("policy.train_global_batch_size=64",),
        (
            "grpo.num_generations_per_prompt=1",
            "advantage.baseline=none",
            "advantage.normalize=false",
        ),
        ("grpo.skip_reference_policy_logprobs_calculation=true",),
        ("loss.reference_policy_kl_penalty=0.1",),
        ("grpo.max_num_steps=null",),
        ("grpo.max_num_epochs=null",),
        (*NO_VALIDATION, "checkpointing.metric=train/reward_mean"),
        (*NO_VALIDATION, "checkpointing.metric=null", "data.validation.source=null"),
        STOP,
        (
            "grpo.stop_at_validation_metric=validation/pass_k",
            STOP[1],
            "grpo.val_num_generations_per_prompt=4",
        ),
        ("checkpointing.metric=reward/format",),
        ("checkpointing.metric=validation/reward/format",),
        ("checkpointing.metric=train/kl_to_reference", "loss.reference_policy_kl_penalty=0.1"),
        ONLY_AT_END,
        ("checkpointing.enabled=false",),
        ("checkpointing.checkpoint_must_save_by=00:03:40:00",),
        ("checkpointing.checkpoint_must_save_by=10:00:00:00",),
        ("grpo.use_dynamic_sampling=true",),
        (
            "grpo.overlong_shaping.enabled=true",
            "grpo.overlong_shaping.max_response_tokens=28",
            "grpo.overlong_shaping.buffer_tokens=28",
        ),
        ("policy.model=./tiny",),
        ("policy.sequence_packing=true",),
        ("policy.model=rlrun:tiny-hybrid", "policy.freeze_moe_router=true"),
        ("policy.model=somebody/elsewhere", "policy.moe_router_fp32=true"),
        ("generation.top_p=0.9", "generation.top_k=5"),
        ("policy.scheduler.decay=linear", "policy.scheduler.decay_steps=40"),
        ("policy.scheduler.warmup_steps=100",),
    ],
)
def test_what_a_rule_allows_is_accepted(flags: tuple[str, ...]) -> None:
    load([QUICK, *flags])


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (("policy.scheduler.decay=cosine",), "policy.scheduler.decay"),
        (
            (
                "grpo.reward_scaling.enabled=true",
                "grpo.reward_scaling.source_min=1",
                "grpo.reward_scaling.source_max=0",
            ),
            "grpo.reward_scaling.source_min",
        ),
        (("advantage.baseline=none",), "advantage.baseline"),
        (
            (
                "policy.scheduler.decay=linear",
                "policy.scheduler.decay_steps=10",
                "policy.scheduler.warmup_steps=10",
            ),
            "policy.scheduler.decay_steps",
        ),
        (("policy.tokenizer=''",), "policy.tokenizer"),
        (("policy.chat_template=' '",), "policy.chat_template"),
        (("grpo.effort.low_string=''",), "grpo.effort.low_string"),
    ],
)
def test_problems_of_nested_settings_name_keys_from_the_root(
    flags: tuple[str, ...], key: str
) -> None:
    problem = only_problem([QUICK, *flags])
    assert key in problem.keys
    assert problem.where in flags


def test_a_source_that_does_not_fit_its_group_is_blamed_rather_than_the_group() -> None:
    problem = only_problem([QUICK, "data.train.source=rows.jsonl"])
    assert problem.where == "data.train.source=rows.jsonl"
    assert "split=null" in problem.remedy
    load([QUICK, "data.train.source=rows.jsonl", "data.train.split=null"])
    load([QUICK, "data=default", "data.train.source=rows.jsonl", *NO_VALIDATION, NO_METRIC])


PASS_K = (
    "grpo.stop_at_validation_metric=validation/pass_k",
    "grpo.val_num_generations_per_prompt=4",
)
OWN_REWARD = ("env=python", "env.reward_function=rlrun.env.last_number:reward")


@pytest.mark.parametrize(
    ("flags", "threshold", "remedy"),
    [
        (STOP[:1], "95", "Write 0.95 for 95 %"),
        (STOP[:1], "1.5", "Give at most 1"),
        (STOP[:1], "101", "Give at most 1"),
        (("grpo.stop_at_validation_metric=validation/reward_mean",), "95", "Write 0.95 for 95 %"),
        (PASS_K, "99.5", "Write 0.995 for 99.5 %"),
        ((*PASS_K, *OWN_REWARD), "99.5", "Write 0.995 for 99.5 %"),
    ],
)
def test_an_early_end_that_cannot_come_is_refused(
    flags: tuple[str, ...], threshold: str, remedy: str
) -> None:
    flag = f"grpo.stop_at_validation_threshold={threshold}"
    problem = only_problem([QUICK, *flags, flag])
    assert f"{flag} is never reached" in problem.what
    assert problem.remedy == remedy


@pytest.mark.parametrize("metric", ["validation/accuracy", "validation/reward_mean"])
def test_rewards_of_ones_own_have_no_bound(metric: str) -> None:
    stop = (f"grpo.stop_at_validation_metric={metric}", "grpo.stop_at_validation_threshold=95")
    assert load([QUICK, *OWN_REWARD, *stop]).config.grpo.stop_at_validation_threshold == 95


def test_one_value_can_break_several_rules() -> None:
    found = problems([QUICK, "policy.max_total_sequence_length=10000"])
    assert len(found) == 1
    found = problems(
        [QUICK, "policy.max_total_sequence_length=20000", "generation.max_new_tokens=30000"]
    )
    assert len(found) == 2


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00:00:01", 1.0),
        ("00:03:40:00", 13200.0),
        ("02:01:00:00", 176400.0),
        ("100:00:00:00", 8.64e6),
    ],
)
def test_durations_are_days_hours_minutes_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "0:0:0:1", "00:00:00:1", "٠٠:00:00:01", "00:00:00:01 "])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="DD:HH:MM:SS"):
        parse_duration(text)
