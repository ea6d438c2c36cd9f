# SPDX-License-Identifier: Apache-2.0
"""Names of models: what they resolve to, and what is said when they do not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from rlrun.config.schema import Policy
from rlrun.errors import DataError
from rlrun.models.resolve import SMOLLM2_FOLDER, eos_token_ids, load_tokenizer, resolve_model
from rlrun.rendering.renderer import Renderer
from tests.factories import config


def policy(
    model: str = "rlrun:tiny", tokenizer: str | None = None, chat_template: str | None = None
) -> Policy:
    return replace(config().policy, model=model, tokenizer=tokenizer, chat_template=chat_template)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded model that a test may damage."""
    copy = tmp_path / "model"
    shutil.copytree(resolve_model("rlrun:tiny"), copy)
    return copy


@pytest.fixture
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a hub at a port where nobody listens."""
    cache = tmp_path / "cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    return cache


def test_the_embedded_model_is_a_folder_of_the_package() -> None:
    found = Path(resolve_model("rlrun:tiny"))
    assert (found / "model.safetensors").is_file()
    assert resolve_model(str(found)) == str(found)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rlrun:huge", "The embedded ones: rlrun:tiny"),
        ("/no/such/folder", "neither a folder nor a model's name"),
        ("a/b/c", "neither a folder nor a model's name"),
        ("", "neither a folder nor a model's name"),
        ("a..b/c", "not a model's name"),
    ],
)
def test_a_name_that_cannot_be_right_is_refused(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        resolve_model(name)
    assert caught.value.exit_code == 3
    assert str(caught.value).startswith("policy.model: ")


def test_a_folder_that_a_command_makes_is_never_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="make smollm2") as caught:
        resolve_model(SMOLLM2_FOLDER)
    assert str(tmp_path / SMOLLM2_FOLDER) in caught.value.what
    with pytest.raises(DataError, match="make smollm2"):
        load_tokenizer(policy(SMOLLM2_FOLDER))


def test_a_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("")
    with pytest.raises(DataError, match="neither a folder"):
        resolve_model(str(tmp_path / "model"))


def test_a_folder_needs_configuration_and_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(DataError, match="no complete safetensors weights"):
        resolve_model(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(DataError, match=r"has no config\.json"):
        resolve_model(str(folder))


def test_a_missing_shard_is_noticed(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="no complete safetensors weights"):
        resolve_model(str(folder))
    shutil.copy(folder / "model.safetensors", folder / "other.safetensors")
    assert resolve_model(str(folder)) == str(folder)


def test_an_unreachable_hub_is_said_within_seconds(no_network: Path) -> None:
    load_tokenizer(policy("rlrun:tiny"))  # transformers takes seconds to import
    started = time.monotonic()
    with pytest.raises(DataError, match="hub cannot be reached.*needs no download"):
        resolve_model("someone/some-model")
    with pytest.raises(DataError, match="hub cannot be reached"):
        load_tokenizer(policy("someone/some-model"))
    assert time.monotonic() - started < 60


def test_offline_mode_is_named(no_network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="offline mode is set"):
        resolve_model("someone/some-model")


def test_a_cached_model_needs_no_network(no_network: Path, folder: Path) -> None:
    repository = no_network / "models--someone--some-model"
    snapshot = repository / "snapshots" / ("0" * 40)
    shutil.copytree(folder, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    assert resolve_model("someone/some-model") == str(snapshot)
    assert load_tokenizer(policy("someone/some-model")).eos_token == "<|im_end|>"
    (snapshot / "model.safetensors").unlink()
    load_tokenizer(policy("someone/some-model"))
    with pytest.raises(DataError, match="hub cannot be reached"):
        resolve_model("someone/some-model")


def test_a_tokenizer_may_come_from_elsewhere(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "tokenizer"
    elsewhere.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).rename(elsewhere / name)
    with pytest.raises(DataError, match="there is no tokenizer in"):
        load_tokenizer(policy(str(folder)))
    assert len(load_tokenizer(policy(str(folder), tokenizer=str(elsewhere)))) == 280


def test_a_tokenizer_of_a_larger_model_is_refused(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"vocab_size": 100}))
    with pytest.raises(DataError, match=r"the tokenizer rlrun:tiny has \d+ tokens.* knows 100"):
        Renderer.load(policy(str(folder), tokenizer="rlrun:tiny"))


def test_a_damaged_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=r"the tokenizer in .* cannot be read"):
        load_tokenizer(policy(str(folder)))


def rendered(chat_template: str | None) -> str:
    tokenizer = load_tokenizer(policy(chat_template=chat_template))
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert isinstance(text, str)
    return text


def test_a_chat_template_is_the_models_a_file_or_text(tmp_path: Path) -> None:
    text = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    (tmp_path / "mine.jinja").write_text(text)
    assert rendered(None) == "<|im_start|>user\nhi<|im_end|>\n"
    assert rendered(text) == "<hi>"
    assert rendered(str(tmp_path / "mine.jinja")) == "<hi>"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("missing.jinja", "neither a template's text nor a readable file"),
        ("{{ messages[ }}", "cannot render"),
        ("{{ messages[0].content.nothing.at_all }}", "cannot render"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "cannot render.*unsafe"),
    ],
)
def test_a_chat_template_that_cannot_render_is_refused(template: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load_tokenizer(policy(chat_template=template))
    assert caught.value.where == "policy.chat_template"


def test_a_model_without_a_chat_template_needs_one(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(DataError, match=r"Set policy\.chat_template"):
        load_tokenizer(policy(str(folder)))
    load_tokenizer(policy(str(folder), chat_template="{{ messages }}"))


def test_settings_with_which_a_tokenizer_fails_are_a_data_error(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": "long"}))
    with pytest.raises(DataError, match="cannot be read"):
        load_tokenizer(policy(str(folder)))


def test_a_template_that_is_a_pipe_is_no_wait_without_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "template.jinja")
    with pytest.raises(DataError, match="no regular file"):
        load_tokenizer(policy(chat_template=str(tmp_path / "template.jinja")))


def test_every_end_of_sequence_token_is_found_once(folder: Path) -> None:
    tokenizer = load_tokenizer(policy(str(folder)))
    assert eos_token_ids(policy(str(folder)), tokenizer) == (2,)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 2, 9]}')
    assert eos_token_ids(policy(str(folder)), tokenizer) == (2, 7, 9)
    (folder / "generation_config.json").unlink()
    assert eos_token_ids(policy(str(folder)), tokenizer) == (2,)
    (folder / "generation_config.json").write_text('{"eos_token_id": 99999}')
    with pytest.raises(DataError, match="eos_token_id=99999 is no token of the 280 of the model"):
        eos_token_ids(policy(str(folder)), tokenizer)
    (folder / "generation_config.json").write_text("[")
    with pytest.raises(DataError, match=r"generation_config\.json: cannot be read"):
        eos_token_ids(policy(str(folder)), tokenizer)


def test_reading_a_configuration_loads_neither_torch_nor_transformers() -> None:
    program = (
        "import sys, rlrun.models.resolve, rlrun.rendering.renderer\n"
        "import rlrun.generation.transformers\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
