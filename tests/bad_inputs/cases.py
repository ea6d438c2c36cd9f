# SPDX-License-Identifier: Apache-2.0
"""Broken command lines, configurations, data, model folders and runs: what is given, by name.

A command runs in a folder of its own that holds the files of the case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Q = "+recipe=quickstart"
TINY = ("policy/model=tiny", "generation.max_new_tokens=8")
ROW = '{"problem": "1+1", "answer": "2"}\n'
LONG = "x" * 300


@dataclass(frozen=True)
class Case:
    """A command and the files that it finds.

    Attributes:
        arguments: Of rlrun.
        files: Content by path below the folder in which the command runs.
        variables: Of the environment.
    """

    arguments: Sequence[str]
    files: Mapping[str, bytes | str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


def flag(*flags: str, **variables: str) -> Case:
    return Case(("config", Q, *flags), variables=variables)


def recipe(text: bytes | str) -> Case:
    if isinstance(text, str) and not text.startswith("defaults:"):
        text = "defaults: [quickstart, _self_]\n" + text
    return Case(("config", "+recipe=mine.yaml"), {"mine.yaml": text})


def data(content: bytes | str, *flags: str, name: str = "rows.jsonl") -> Case:
    return Case(("check", *TINY, f"data.train.source={name}", *flags), {name: content})


def model(**files: bytes | str) -> Case:
    named = {f"model/{name.replace('__', '.')}": content for name, content in files.items()}
    return Case(("eval", "model", Q), named)


def answer(text: str) -> Case:
    return data(f'{{"problem": "p", "answer": {text}}}\n')


def messages(text: str) -> Case:
    return data(f'{{"messages": {text}, "answer": "1"}}\n')


COMMAND_LINES = {
    "no_such_command": Case(("trian",)),
    "no_such_option": Case(("config", "--orgin")),
    "setting_with_dashes": Case(("config", "+recipe=quickstart", "--grpo.seed=3")),
    "no_run_given": Case(("view",)),
    "step_is_no_number": Case(("view", "run", "--step", "x")),
    "order_is_none": Case(("view", "run", "--sort", "upward")),
    "flag_without_value": flag("grpo.seed"),
    "flag_without_key": flag("=3"),
    "flag_empty": flag(""),
    "misspelt": flag("grpo.num_generatons=8"),
    "misspelt_plus": flag("+grpo.num_generatons=8"),
    "misspelt_plus_plus": flag("++grpo.num_generatons=8"),
    "misspelt_data": flag("+data.train.splt=validation"),
    "fraction": flag("grpo.num_generations_per_prompt=4.5"),
    "word_for_number": flag("grpo.num_generations_per_prompt=abc"),
    "null_for_number": flag("grpo.num_generations_per_prompt=null"),
    "negative": flag("grpo.num_prompts_per_step=-1"),
    "nan": flag("policy.optimizer.lr=nan"),
    "number_as_text": flag("grpo.seed='4'"),
    "exponent_as_text": flag("policy.optimizer.lr='1e-6'"),
    "hexadecimal": flag("grpo.seed=0x10"),
    "leading_zero": flag("grpo.seed=01"),
    "wide_digits": flag("grpo.seed=１２"),
    "digits_beyond_python": flag("grpo.seed=" + "9" * 5000),
    "digits_beyond_float": flag("policy.optimizer.lr=" + "9" * 400),
    "foreign_letter": flag("grpo.s\u0435ed=1"),
    "escape_sequence": flag("grpo.seed='\x1b[2J'"),
    "deep_list": flag("grpo.seed=" + "[" * 3000 + "]" * 3000),
    "deep_mapping": flag("grpo.seed=" + "{a:" * 300 + "1" + "}" * 300),
    "too_many_items": flag("generation.stop=[" + "x," * 3000 + "x]"),
    "deep_interpolation": flag("policy.tokenizer=" + "${" * 3000),
    "section_null": flag("data=null"),
    "section_text": flag("policy.optimizer=adam"),
    "nothing_for_choice": flag("loss=gsppo"),
    "lone_surrogate": flag("policy.tokenizer='\udcff'"),
    "duration": flag("checkpointing.checkpoint_must_save_by=1:2"),
    "divisibility": flag("policy.train_global_batch_size=7"),
    "nemo_rl": flag("loss_fn.ratio_clip_min=0.2"),
    "recipe_unknown": Case(("config", "+recipe=quickstrat")),
    "recipe_of_no_user": Case(("config", "+recipe=~nobody-here/x.yaml")),
    "recipe_name_too_long": Case(("config", f"+recipe={LONG}")),
    "recipe_path_too_long": Case(("config", f"+recipe={LONG * 20}.yaml")),
    "recipe_shown_is_no_text": Case(("recipes", "mine.yaml"), {"mine.yaml": b"# \xff"}),
    "recipe_outside": Case(("recipes", "../secret")),
    "model_name_too_long": Case(("eval", LONG, Q)),
    "model_of_no_user": Case(("eval", "~nobody-here/x", Q)),
    "config_dir_missing": Case(("config", Q, "--config-dir", "nowhere")),
    "config_dir_too_long": Case(("config", Q, "--config-dir", LONG)),
    "diff_quotes": Case(("config", "--diff", "a 'b", "quickstart")),
    "secret_as_number": flag("grpo.seed=${oc.env:RLRUN_TEST_KEY}", RLRUN_TEST_KEY="sk-secret"),
    "secret_as_choice": flag(
        "policy.precision=${oc.env:RLRUN_TEST_KEY}", RLRUN_TEST_KEY="sk-secret"
    ),
    "secret_as_list": flag("generation.stop=${oc.env:RLRUN_TEST_KEY}", RLRUN_TEST_KEY="sk-secret"),
    "variable_unset": flag("policy.tokenizer=${oc.env:RLRUN_NOT_SET}"),
}

RECIPES = {
    "yaml_syntax": recipe("grpo: {seed: 1\n"),
    "yaml_tab": recipe("grpo:\n\tseed: 5\n"),
    "yaml_not_utf8": recipe(b"grpo: {seed: 1} # \xff\n"),
    "yaml_two_documents": recipe("grpo: {seed: 1}\n---\ngrpo: {seed: 2}\n"),
    "yaml_list": recipe(b"- a\n- b\n"),
    "yaml_python_object": recipe('grpo: {seed: !!python/object/apply:os.system ["id"]}\n'),
    "yaml_binary": recipe("policy: {tokenizer: !!binary aGVsbG8=}\n"),
    "yaml_tag_bool": recipe("grpo: {seed: !!bool x}\n"),
    "yaml_tag_empty": recipe("grpo: {seed: !!int ''}\n"),
    "yaml_tag_date": recipe("grpo: {seed: !!timestamp x}\n"),
    "yaml_tag_month": recipe("grpo: {seed: !!timestamp 2026-13-45}\n"),
    "yaml_deep": recipe("grpo: {seed: " + "[" * 500 + "]" * 500 + "}\n"),
    "yaml_digits": recipe("grpo: {seed: " + "9" * 5000 + "}\n"),
    "yaml_infinite": recipe("policy: {optimizer: {lr: 1e999}}\n"),
    "yaml_merge_of_number": recipe("grpo: {<<: 3}\n"),
    "yaml_merge_of_numbers": recipe("grpo: {<<: [1, {seed: 2}]}\n"),
    "yaml_key_twice": recipe("grpo:\n  seed: 1\n  seed: 2\n"),
    "yaml_key_number": recipe("grpo: {5: 1}\n"),
    "yaml_contains_itself": recipe("generation: &a {stop: [*a]}\n"),
    "yaml_nul_in_path": recipe('run_dir: "a\\0b"\n'),
    "yaml_nul_in_model": recipe('policy: {model: "a\\0b"}\n'),
    "yaml_surrogate": recipe('policy: {tokenizer: "\\ud800"}\n'),
    "yaml_crlf_misspelt": recipe("grpo:\r\n  sede: 5\r\n"),
    "defaults_of_list": recipe("defaults: [[a]]\n"),
    "defaults_key_is_list": recipe("defaults: [{[a]: b}]\n"),
    "defaults_key_is_empty": recipe('defaults: [{"": b}]\n'),
    "defaults_choice_is_list": recipe("defaults: [quickstart, {override /loss: [grpo]}]\n"),
    "defaults_no_list": recipe("defaults: quickstart\n"),
    "defaults_tag": recipe("defaults: [quickstart, {override /loss: !!bool x}]\n"),
    "defaults_python_object": recipe(
        "defaults: [quickstart, {override /loss: !!python/object/apply:os.system [id]}]\n"
    ),
    "defaults_self_twice": recipe("defaults: [_self_, quickstart, _self_]\n"),
    "defaults_no_such_group": recipe("defaults: [quickstart, {override /los: grpo}]\n"),
    "defaults_itself": recipe("defaults: [mine.yaml]\n"),
    "section_unknown": recipe("enviroment: {name: mth}\n"),
    "interpolation_deep": recipe(f"policy: {{tokenizer: '{'${' * 400}a{'}' * 400}'}}\n"),
    "interpolation_nowhere": recipe("policy: {tokenizer: '${grpo.sed}'}\n"),
}

DATA = {
    "file_missing": Case(("check", *TINY, "data.train.source=nowhere.jsonl")),
    "file_name_too_long": Case(("check", *TINY, f"data.train.source={LONG}.jsonl")),
    "file_empty": data(""),
    "file_of_byte_order_mark": data(b"\xef\xbb\xbf"),
    "file_of_blank_lines": data("\r\n \n\n"),
    "file_utf16": data(ROW.encode("utf-16")),
    "file_latin1": data('{"problem": "é", "answer": "1"}\n'.encode("latin1")),
    "file_of_zeros": data(b"\0" * 64),
    "file_csv": data("problem,answer\n1,2\n", name="rows.csv"),
    "file_compressed": data(b"\x1f\x8b\x08", name="rows.jsonl.gz"),
    "file_no_parquet": data(b"PAR1 nothing PAR1", name="rows.parquet"),
    "file_json_array": data("[" + ROW + "]", name="rows.json"),
    "line_cut": data(ROW * 2 + '{"problem": "x"\n' + ROW),
    "line_old_mac": data(ROW.replace("\n", "\r") * 2),
    "line_no_object": data("5\n"),
    "line_deep": data('{"problem": ' + "[" * 100_000 + "\n"),
    "line_duplicate_field": data('{"problem": "a", "problem": "b", "answer": "1"}\n'),
    "problem_missing": data('{"answer": "2"}\n'),
    "problem_empty": data('{"problem": " ", "answer": "2"}\n'),
    "problem_null": data('{"problem": null, "answer": "2"}\n'),
    "problem_number": data('{"problem": 5, "answer": "2"}\n'),
    "answer_missing": data('{"problem": "1+1"}\n'),
    "answer_empty": answer('""'),
    "answer_null": answer("null"),
    "answer_nan": answer("NaN"),
    "answer_infinite": answer("1e999"),
    "answer_boolean": answer("true"),
    "answer_list": answer('["1"]'),
    "answer_surrogate": answer('"\\ud800"'),
    "answer_digits": answer("9" * 5000),
    "answer_unreadable": answer('"\\\\frac{1}"'),
    "messages_empty": messages("[]"),
    "messages_null": messages("[null]"),
    "messages_role": messages('[{"role": "User", "content": "x"}]'),
    "messages_content_null": messages('[{"role": "user", "content": null}]'),
    "messages_image": messages('[{"role": "user", "content": [{"type": "image_url"}]}]'),
    "messages_tool_calls_number": messages(
        '[{"role": "assistant", "tool_calls": 5}, {"role": "user", "content": "x"}]'
    ),
    "messages_tool_calls_texts": messages(
        '[{"role": "assistant", "tool_calls": ["f"]}, {"role": "user", "content": "x"}]'
    ),
    "template_without_place": data(ROW, "data.train.prompt_template='no place'"),
    "pattern_not_found": data(ROW, "data.train.answer_pattern='####'"),
    "both_files_broken_and_no_tokenizer": data(
        '{"problem": 5}\n', "data.validation.source=nowhere.jsonl", "policy.tokenizer=rlrun:x"
    ),
    "prompts_too_long": data('{"problem": "' + "word " * 400 + '", "answer": "1"}\n'),
}

MODELS = {
    "folder_empty": Case(("eval", "model", Q), {"model/readme.txt": "x"}),
    "folder_without_weights": model(config__json="{}"),
    "config_no_json": model(config__json="{", model__safetensors=b""),
    "config_list": model(config__json="[]", model__safetensors=b""),
    "config_names_code_of_the_hub": model(
        config__json='{"_attn_implementation": "evil/kernel"}', model__safetensors=b""
    ),
    "config_names_code_below": model(
        config__json='{"text_config": {"attn_implementation": "evil/kernel@main:f"}}',
        model__safetensors=b"",
    ),
    "index_no_json": model(config__json="{}", **{"model.safetensors.index.json": "{"}),
    "index_deep": model(config__json="{}", **{"model.safetensors.index.json": "[" * 100_000}),
    "index_list": model(
        config__json="{}", **{"model.safetensors.index.json": '{"weight_map": [1]}'}
    ),
    "index_elsewhere": model(
        config__json="{}",
        **{"model.safetensors.index.json": '{"weight_map": {"a": "../../etc/passwd"}}'},
    ),
    "index_shard_missing": model(
        config__json="{}", **{"model.safetensors.index.json": '{"weight_map": {"a": "b"}}'}
    ),
    "pickled_weights": model(config__json="{}", **{"pytorch_model.bin": b"\x80\x04N."}),
    "template_file_missing": Case(("check", Q, "policy.chat_template=nowhere.jinja")),
    "template_syntax": Case(("check", Q, "policy.chat_template='{% if %}'")),
    "template_hides_question": Case(("check", Q, "policy.chat_template='{{ 1 }}'")),
    "template_memory": Case(("check", Q, "policy.chat_template='{{ \"a\" * 10**15 }}'")),
    "template_endless": Case(
        ("check", Q, "policy.chat_template='{% for i in range(10**12) %}{% endfor %}'")
    ),
    "template_raises_escapes": Case(
        (
            *("eval", "rlrun:tiny", Q),
            "policy.chat_template='{{ raise_exception(\"\x1b]0;evil\x07\") }}'",
        )
    ),
    "template_mutates": Case(("check", Q, "policy.chat_template='{{ messages.append(1) }}'")),
    "template_escapes": Case(
        ("check", Q, "policy.chat_template='{{ messages.__class__.__mro__ }}'")
    ),
}

RUNS = {
    "view_no_run": Case(("view", ".")),
    "view_too_long": Case(("view", LONG)),
    "audit_no_run": Case(("audit", ".")),
    "export_no_run": Case(("export", ".", "out")),
    "resume_no_run": Case(("resume", ".")),
    "simulate_no_run": Case(("simulate", "--from", ".")),
    "score_missing": Case(("score", "nowhere.jsonl")),
    "score_no_json": Case(("score", "a.jsonl"), {"a.jsonl": "{\n"}),
    "score_nan": Case(("score", "a.jsonl"), {"a.jsonl": '{"response": "1", "gold": NaN}\n'}),
    "score_infinite": Case(("score", "a.jsonl"), {"a.jsonl": '{"response": "1", "gold": 1e999}\n'}),
    "score_no_response": Case(("score", "a.jsonl"), {"a.jsonl": '{"gold": "1"}\n'}),
    "events_no_json": Case(("audit", "run"), {"run/config.yaml": "", "run/events.jsonl": "x\ny\n"}),
    "events_deep": Case(
        ("audit", "run"), {"run/config.yaml": "", "run/events.jsonl": "[" * 100_000 + "\n{}\n"}
    ),
    "events_empty": Case(("audit", "run"), {"run/config.yaml": "", "run/events.jsonl": ""}),
    "status_deep": Case(("view", "run"), {"run/config.yaml": "", "run/status.json": "[" * 100_000}),
    "status_list": Case(("view", "run"), {"run/config.yaml": "", "run/status.json": "[]"}),
    "metrics_no_json": Case(
        ("view", "run"), {"run/config.yaml": "", "run/metrics.jsonl": "{}\nx\n{}\n"}
    ),
    "timeline_beyond_float": Case(
        ("report", "run"),
        {
            "run/config.yaml": "",
            "run/timeline.jsonl": '{"step": 1, "start": 1%s, "seconds": 1, "lanes": {}, '
            '"groups": [], "stragglers": []}\n' % ("0" * 400),
        },
    ),
    "nightly_config_dir_missing": Case(("nightly", "--config-dir", "nowhere", "--dry-run")),
    "nightly_trend_is_a_folder": Case(
        ("nightly", "--recipes", "quickstart", "--trend", ".", "--dry-run")
    ),
    "eval_of_nothing": Case(("eval", "", Q)),
    "trained_no_json": Case(
        ("view", "run", "--step", "1"),
        {"run/config.yaml": "", "run/trained/step_000001.jsonl": "x\n"},
    ),
    "trained_lacks_fields": Case(
        ("view", "run", "--step", "1"),
        {"run/config.yaml": "", "run/trained/step_000001.jsonl": json.dumps({"step": 1}) + "\n"},
    ),
    "config_of_run_broken": Case(("export", "run", "out"), {"run/config.yaml": "grpo: {\n"}),
    "train_into_a_run": Case(
        ("train", Q, "run_dir=run"), {"run/config.yaml": "", "run/metrics.jsonl": ""}
    ),
}

CASES: Mapping[str, Mapping[str, Case]] = {
    "command_lines": COMMAND_LINES,
    "recipes": RECIPES,
    "data": DATA,
    "models": MODELS,
    "runs": RUNS,
}
