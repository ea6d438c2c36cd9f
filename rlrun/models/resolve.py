# SPDX-License-Identifier: Apache-2.0
"""From the name of a model to a local folder, its tokenizer and its end-of-sequence tokens.

Everything after this module reads local folders only: a model of the hub is downloaded once and is
then taken from the cache without asking the hub again, so that a run needs no network and two runs
read the same files. Weights are read as safetensors, and code in a model's folder is never run.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.config.model_words import CAUSAL_MODELS, not_causal, words_of
from rlrun.config.paths import expand, is_dir, is_file
from rlrun.config.schema import Policy
from rlrun.errors import ConfigError, DataError, NotHere, Problem
from rlrun.models.embedded import EMBEDDED, embedded_folder
from rlrun.rendering.template_limits import bounded_rendering, install

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

SMOLLM2_FOLDER = "models/smollm2-135m-instruct"
MADE_BY = {
    SMOLLM2_FOLDER: "Make it once with make smollm2, or outside of a checkout with "
    "python -m rlrun.models.smollm2"
}
"""Folders that recipes name and a command makes: what to do where one is missing."""

SHARDS = "shards"
"""The folder beside a checkpoint's policy/ that holds tensors as every rank wrote them."""

CONNECT_TIMEOUT_S = 5
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
NO_WEIGHTS = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"]
"""Files of a hub model without its weights: configuration, chat template, vocabularies."""
VOCABULARIES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken", "tekken.json")
"""Files that hold a tokenizer. Without one transformers makes up an empty tokenizer."""


def resolve_model(name: str, key: str = "policy.model") -> str:
    """The local folder of a model: configuration, tokenizer and safetensors weights.

    Args:
        name: ``rlrun:tiny``, a folder, or a model on the hub (``OWNER/NAME``).
        key: Where the name comes from, for error messages.

    Raises:
        DataError: There is no such model, it is not complete, or the hub cannot be reached.
        ConfigError: It is no causal language model.
    """
    folder = _resolve(name, key, weights=True)
    if not (folder / "config.json").is_file():
        raise DataError(
            key,
            f"the folder {name} has no config.json",
            "Give the folder that save_pretrained wrote, or one made by rlrun export",
        )
    if not _has_weights(folder):
        raise DataError(
            key,
            f"{folder} has no complete safetensors weights",
            "Save the model with save_pretrained of transformers",
        )
    _refuse_foreign_code(folder / "config.json")
    kind = not_causal(words_of(str(folder), {}) or {})
    if kind is not None:
        raise ConfigError([Problem(key, f"{name} is {kind}", CAUSAL_MODELS, (key,))])
    return str(folder)


def load_tokenizer(policy: Policy) -> PreTrainedTokenizerBase:
    """The policy's tokenizer with the chat template that is to be used.

    Raises:
        DataError: The tokenizer cannot be read, or there is no chat template that renders.
    """
    from transformers import AutoTokenizer

    key = "policy.model" if policy.tokenizer is None else "policy.tokenizer"
    folder = _resolve(policy.tokenizer or policy.model, key, weights=False)
    remedy = "Set policy.tokenizer to a folder or model that has one"
    if not _has_vocabulary(folder):
        raise DataError(key, f"there is no tokenizer in {folder}", remedy)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        tokenizer("probe", add_special_tokens=False)
    # Whatever is wrong with the files, the libraries raise what comes up while reading them.
    except Exception as error:
        raise DataError(
            key, f"the tokenizer in {folder} cannot be read: {_first_line(error)}", remedy
        ) from error
    if policy.chat_template is not None:
        tokenizer.chat_template = _read_template(policy.chat_template)
    try:
        tokenizer.get_chat_template()
    except ValueError as error:
        raise DataError(
            key,
            f"the tokenizer in {folder} has no chat template",
            "Set policy.chat_template to a .jinja file, or take an instruction-tuned model",
        ) from error
    _check_template(tokenizer, "policy.chat_template" if policy.chat_template else key)
    return tokenizer


def _check_template(tokenizer: PreTrainedTokenizerBase, key: str) -> None:
    """Renders two questions: a template must be able to, and must show what was asked.

    Raises:
        DataError: It cannot, or does not.
    """
    remedy = "Correct the template, or set policy.chat_template to another"
    install()
    for question in ("probe one", "probe two"):
        message = [{"role": "user", "content": question}]
        try:
            with bounded_rendering():
                text = tokenizer.apply_chat_template(
                    message, tokenize=False, add_generation_prompt=True
                )
        # A template is a program; what it raises is up to it.
        except Exception as error:
            what = f"the chat template cannot render a user's message: {_first_line(error)}"
            raise DataError(key, what, remedy) from error
        if question not in str(text):
            raise DataError(key, "the chat template leaves out what the user says", remedy)


def read_model_config(name: str) -> PretrainedConfig:
    """The configuration of a model.

    Raises:
        DataError: There is no such model, or its configuration or the files of its weights are
            damaged.
        ConfigError: It is no causal language model.
    """
    from safetensors import SafetensorError, safe_open
    from transformers import AutoConfig

    folder = Path(resolve_model(name))
    remedy = "Restore the folder, or save the model anew with save_pretrained"
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        config.get_text_config(decoder=True).to_dict()
    # As above: a broken configuration fails in whatever line meets it first.
    except Exception as error:
        what = f"config.json cannot be used: {_first_line(error)}"
        raise DataError(str(folder), what, remedy) from error
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy"):
                pass  # Opening reads and checks what the file says of itself.
        except (SafetensorError, OSError) as error:
            raise DataError(str(path), f"is damaged: {_first_line(error)}", remedy) from error
    return config


def eos_token_ids(policy: Policy, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every token that ends a completion: the tokenizer's, then those of generation_config.json.

    Raises:
        DataError: Neither names one.
    """
    folder = _resolve(policy.model, "policy.model", weights=False)
    found: list[int] = []
    if tokenizer.eos_token_id is not None:
        found.append(int(tokenizer.eos_token_id))
    for file in ("generation_config.json", "config.json"):
        path = folder / file
        named = _read_json(path).get("eos_token_id") if path.is_file() else None
        if named is None:
            continue
        ids = named if isinstance(named, list) else [named]
        size = vocabulary_size(policy)
        if not all(type(t) is int and 0 <= t and (size is None or t < size) for t in ids):
            known = "" if size is None else f" of the {size} of the model"
            raise DataError(str(path), f"eos_token_id={named!r} is no token{known}", "Correct it")
        found.extend(ids)
        break
    if not found:
        raise DataError(
            "policy.model",
            f"neither the tokenizer nor {folder} names an end-of-sequence token",
            "Set eos_token_id in generation_config.json",
        )
    return tuple(dict.fromkeys(found))


def vocabulary_size(policy: Policy) -> int | None:
    """Rows of the model's embedding, as its config.json has it; None if that says nothing.

    Raises:
        DataError: There is no such model, or its configuration cannot be read.
    """
    path = _resolve(policy.model, "policy.model", weights=False) / "config.json"
    settings = _read_json(path) if path.is_file() else {}
    text = settings.get("text_config")
    size = (text if isinstance(text, dict) else settings).get("vocab_size")
    return size if type(size) is int else None


def check_vocabulary(policy: Policy, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    """Makes sure that a tokenizer belongs to a model with that many token ids.

    Tokens that were added to it may lie beyond, as that of images in a model without any.

    Raises:
        DataError: It does not.
    """
    if tokenizer.vocab_size > size:
        key = "policy.model" if policy.tokenizer is None else "policy.tokenizer"
        raise DataError(
            key,
            f"the tokenizer {policy.tokenizer or policy.model} has {tokenizer.vocab_size} tokens, "
            f"and policy.model={policy.model} knows {size}",
            "Set policy.tokenizer=null, or to the tokenizer that the model was trained with",
        )


def _refuse_foreign_code(path: Path) -> None:
    """Of an implementation that is a name of the hub transformers would fetch and run the code.

    Raises:
        DataError: The configuration names one.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return  # Said by those who need what is in it.
    parts = [config, *config.values()] if isinstance(config, dict) else []
    for part in parts:
        for name, value in part.items() if isinstance(part, dict) else ():
            if name.endswith("_implementation") and "/" in str(value):
                what = f"{name}={value!r:.80} names code of the hub, which is never run"
                raise DataError(str(path), what, f"Take {name} out")


def _resolve(name: str, key: str, *, weights: bool) -> Path:
    """The folder of a model; without ``weights``, of a hub model the small files suffice."""
    if name in EMBEDDED:
        return embedded_folder(name)
    if name.startswith("rlrun:"):
        known = ", ".join(EMBEDDED)
        raise DataError(key, f"there is no embedded model {name}", f"The embedded ones: {known}")
    folder = expand(name)
    if name and is_dir(folder):
        return folder
    if name in MADE_BY:
        raise NotHere(key, f"there is no folder {folder.absolute()}", MADE_BY[name])
    if is_file(folder) or not HUB_NAME.fullmatch(name):
        raise DataError(
            key,
            f"{name} is neither a folder nor a model's name",
            "Give rlrun:tiny, a folder with a config.json, or OWNER/NAME on the hub",
        )
    return _from_hub(name, key, weights=weights)


def _from_hub(name: str, key: str, *, weights: bool) -> Path:
    """The cached snapshot of a hub model, downloaded if it is not there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(name, local_files_only=True))
        if _has_weights(cached) or (not weights and _has_vocabulary(cached)):
            return cached
    except LocalEntryNotFoundError:
        pass  # Not cached: to be downloaded.
    except HFValidationError as error:
        raise DataError(
            key, f"{name} is not a model's name: {_first_line(error)}", "Give OWNER/NAME"
        ) from error
    _require_hub(name, key)
    wanted = [*NO_WEIGHTS, "*.safetensors"] if weights else NO_WEIGHTS
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except OSError as error:
        raise DataError(
            key,
            f"{name} is no folder here and cannot be downloaded: {_first_line(error)}",
            "Check the spelling and, for a gated model, that you are logged in to the hub",
        ) from error


def _require_hub(name: str, key: str) -> None:
    """Fails within seconds where the hub is out of reach; its own client retries for a minute."""
    from huggingface_hub import constants

    reason = "offline mode is set" if constants.HF_HUB_OFFLINE else None
    if reason is None:
        request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
        try:
            urllib.request.urlopen(request, timeout=CONNECT_TIMEOUT_S).close()
        except urllib.error.HTTPError:
            return  # It answers; what it makes of the name comes next.
        except OSError as error:
            reason = _first_line(error)
    if reason is not None:
        raise NotHere(
            key,
            f"{name} is no folder here and the model hub cannot be reached: {reason}",
            "Give a folder with the model, or rlrun:tiny, which needs no download",
        )


def _has_weights(folder: Path) -> bool:
    """Whether all safetensors files are there, those that an index lists included."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(map(_is_name, weight_map.values())):
            raise DataError(str(index), "weight_map is not a mapping to file names", "Restore it")
        shards = set(weight_map.values())
        return bool(shards) and all((folder / shard).is_file() for shard in shards)
    return any(folder.glob("*.safetensors")) or shards_of(folder) is not None


def shards_of(folder: Path) -> Path | None:
    """Where the weights of a checkpoint's policy/ are, if it has none itself."""
    beside = folder.parent / SHARDS
    if any(folder.glob("*.safetensors")) or not any(beside.glob("*.safetensors")):
        return None
    return beside


def _is_name(value: object) -> bool:
    """Whether it names a file of the folder itself, rather than of another one."""
    return isinstance(value, str) and value not in ("", ".", "..") and Path(value).name == value


def _has_vocabulary(folder: Path) -> bool:
    return any(path for pattern in VOCABULARIES for path in folder.glob(pattern))


def _read_template(template: str) -> str:
    """A chat template given as text or as the path of a file."""
    if "{{" in template or "{%" in template:
        return template
    try:
        path = expand(template)
        # Nobody might ever write to a pipe, and devices have no end.
        if path.exists() and not path.is_file():
            raise OSError("it is no regular file")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(
            "policy.chat_template",
            f"{template!r} is neither a template's text nor a readable file: {_first_line(error)}",
            "Give the path of a .jinja file, or the template itself",
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(str(path), f"cannot be read: {_first_line(error)}", "Restore it") from error
    if not isinstance(content, dict):
        raise DataError(str(path), "does not hold a JSON object", "Restore it")
    return content


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
