# SPDX-License-Identifier: Apache-2.0
"""What is exported is the learner's policy, complete, and never half there."""

from __future__ import annotations

import io
import json
import resource
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlrun.checkpoint.training_state import load_tensors
from rlrun.config import load
from rlrun.console.console import Console
from rlrun.derived import sampling_of
from rlrun.errors import ConfigError, StorageError
from rlrun.learner.learner import Learner
from rlrun.models.export import convert, export
from rlrun.models.resolve import resolve_model
from tests.conftest import SMALL
from tests.e2e.forked import forked as rlrun

TOKENS = torch.tensor([[1, 40, 77, 19, 133, 250, 8, 2, 61, 5]])
MODEL_FILES = ["config.json", "generation_config.json", "model.safetensors"]
TOKENIZER_FILES = ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture(scope="module")
def lora_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a short run that trains an adapter."""
    path = tmp_path_factory.mktemp("lora") / "run"
    lora = ("policy.lora.enabled=true", "policy.lora.rank=4", "policy.optimizer.lr=3e-3")
    done = rlrun("train", *SMALL, *lora, "grpo.max_num_steps=4", f"run_dir={path}")
    assert done.code == 0, done.err
    return path


def write(run: Path, destination: Path, **options: object) -> str:
    """Exports and returns what was said."""
    said = io.StringIO()
    with Console(said) as console:
        export(run, destination, console, **options)  # type: ignore[arg-type]
    return said.getvalue()


def learner_logits(run: Path, step: int) -> Tensor:
    """Of the learner that goes on from a checkpoint."""
    config = load([f"+recipe={run / 'config.yaml'}"]).config
    sampling = sampling_of(config, training=True)
    learner = Learner(config.policy, config.loss, sampling, torch.device("cpu"))
    learner.load(run / f"checkpoints/step_{step:06d}")
    with torch.no_grad():
        logits: Tensor = learner.model(input_ids=TOKENS, use_cache=False).logits
    return logits


def logits_of(folder: Path) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logits: Tensor = model(input_ids=TOKENS, use_cache=False).logits
    return logits


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_float32_logits_are_the_learners_bit_for_bit(small_run: Path, tmp_path: Path) -> None:
    said = write(small_run, tmp_path / "model")
    assert names(tmp_path / "model") == sorted([*MODEL_FILES, *TOKENIZER_FILES])
    assert torch.equal(logits_of(tmp_path / "model"), learner_logits(small_run, 8))
    assert "step 8" in said and "331,520 parameters" in said


def test_a_step_can_be_chosen(small_run: Path, tmp_path: Path) -> None:
    write(small_run, tmp_path / "model", step=4)
    assert torch.equal(logits_of(tmp_path / "model"), learner_logits(small_run, 4))
    assert not torch.equal(logits_of(tmp_path / "model"), learner_logits(small_run, 8))


def test_bfloat16_is_the_rounded_float32(small_run: Path, tmp_path: Path) -> None:
    write(small_run, tmp_path / "wide")
    write(small_run, tmp_path / "narrow", dtype="bfloat16")
    wide, narrow = (
        load_tensors(tmp_path / name / "model.safetensors") for name in ("wide", "narrow")
    )
    assert wide.keys() == narrow.keys()
    assert all(torch.equal(wide[name].bfloat16(), narrow[name]) for name in wide)
    assert json.loads((tmp_path / "narrow/config.json").read_text())["dtype"] == "bfloat16"


def test_what_a_model_reads_in_float32_stays_exact(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(resolve_model("rlrun:tiny-hybrid"))
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.linspace(-1.0, 1.0, buffer.numel()) / 3)
    wide = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    convert(model, torch.bfloat16)
    model.save_pretrained(tmp_path)
    narrow = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).state_dict()
    exact = {name for name, tensor in narrow.items() if tensor.dtype is torch.float32}
    assert exact == {name for name in wide if name.endswith("e_score_correction_bias")} != set()
    for name, tensor in wide.items():
        assert narrow[name].equal(tensor if name in exact else tensor.bfloat16()), name


def test_a_merged_adapter_gives_the_learners_logits(lora_run: Path, tmp_path: Path) -> None:
    write(lora_run, tmp_path / "model")
    assert names(tmp_path / "model") == sorted([*MODEL_FILES, *TOKENIZER_FILES])
    ours, theirs = logits_of(tmp_path / "model"), learner_logits(lora_run, 4)
    assert float((ours - theirs).abs().max()) < 1e-5
    base = AutoModelForCausalLM.from_pretrained(resolve_model("rlrun:tiny"))
    with torch.no_grad():
        start = base(input_ids=TOKENS, use_cache=False).logits
    assert float((ours - start).abs().max()) > 1e-2


def test_an_adapter_alone_gives_the_learners_logits(lora_run: Path, tmp_path: Path) -> None:
    write(lora_run, tmp_path / "adapter", merge=False)
    files = ["adapter_config.json", "adapter_model.safetensors", *TOKENIZER_FILES]
    assert names(tmp_path / "adapter") == sorted(files)
    assert torch.equal(logits_of(tmp_path / "adapter"), learner_logits(lora_run, 4))


def test_the_folder_talks_as_the_run_did(small_run: Path, tmp_path: Path) -> None:
    write(small_run, tmp_path / "model")
    ours = AutoTokenizer.from_pretrained(tmp_path / "model")
    theirs = AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny"))
    messages = [{"role": "user", "content": "What is 3 + 4?"}]
    rendered = [
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        for tokenizer in (ours, theirs)
    ]
    assert rendered[0] == rendered[1]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.generation_config.eos_token_id == 2
    assert model.config.use_cache


def test_files_can_be_read_by_whom_the_umask_allows(small_run: Path, tmp_path: Path) -> None:
    write(small_run, tmp_path / "model")
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    plain = tmp_path / "plain"
    plain.touch()
    assert modes == {plain.stat().st_mode & 0o777}


def test_what_is_there_is_never_touched(small_run: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "file"):
        with pytest.raises(StorageError, match="not an empty folder"):
            write(small_run, tmp_path / name)
    assert names(tmp_path) == ["file", "full"]
    assert names(tmp_path / "full") == ["notes.txt"]


def test_an_empty_folder_is_filled(small_run: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write(small_run, tmp_path / "model")
    assert "model.safetensors" in names(tmp_path / "model")


def test_a_damaged_checkpoint_is_refused_and_leaves_nothing(
    small_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    weights = run / "checkpoints/step_000008/policy/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(StorageError, match="SHA-256"):
        write(run, tmp_path / "model", step=8)
    assert names(tmp_path) == ["run"]
    # Without a step the one before is taken, aloud.
    said = write(run, tmp_path / "model")
    assert "damaged" in said and "step 6" in said


def test_an_error_on_the_way_leaves_nothing(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlrun.models.export.fsync_file", full)
    with pytest.raises(StorageError, match="No space left"):
        write(small_run, tmp_path / "deep/model")
    assert names(tmp_path / "deep") == []


def test_a_full_disk_is_a_storage_error(small_run: Path, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(StorageError, match="File too large"):
            write(small_run, tmp_path / "deep/model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path / "deep") == []


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"step": 3}, StorageError, "no checkpoint of step 3"),
        ({"merge": False}, ConfigError, "has no adapter"),
        ({"dtype": "int8"}, ConfigError, "float32, bfloat16"),
    ],
)
def test_what_cannot_be_exported_is_said(
    small_run: Path,
    tmp_path: Path,
    options: dict[str, object],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        write(small_run, tmp_path / "model", **options)
    assert not (tmp_path / "model").exists()


def test_the_command_exports_and_refuses_a_second_time(small_run: Path, tmp_path: Path) -> None:
    done = rlrun("export", str(small_run), str(tmp_path / "model"))
    assert (done.code, done.out) == (0, ""), done.err
    assert "exported step 8" in done.err
    again = rlrun("export", str(small_run), str(tmp_path / "model"))
    assert again.code == 7
    assert again.err.startswith("error: ")


def test_no_run_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds no run"):
        write(tmp_path, tmp_path / "model")
