# SPDX-License-Identifier: Apache-2.0
"""Opens the store of a data source: a file, a folder, a generator, reasoning-gym or a hub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from rlrun.config.data_schema import DataSource, SourceKind
from rlrun.config.paths import expand
from rlrun.data.generators import generator_records
from rlrun.data.hub import hub_store
from rlrun.data.jsonl import JsonlStore
from rlrun.data.parquet import ParquetStore
from rlrun.data.reasoning_gym import reasoning_gym_store
from rlrun.data.stores import RecordStore, SequenceStore
from rlrun.errors import DataError, NotHere

JSON_SUFFIXES = (".jsonl", ".json")
PARQUET_SUFFIXES = (".parquet",)
MADE_BY = {
    f"data/nano_v3/{part}.jsonl": "Download nvidia/Nemotron-3-Nano-RL-Training-Blend, fill its "
    "gaps as its page says, and give the files in data.train.source and data.validation.source"
    for part in ("train", "validation")
}
"""Files that choices of data name and that come from elsewhere: what to do where one is missing."""
SUFFIXES = JSON_SUFFIXES + PARQUET_SUFFIXES
OTHER_ROWS = (".arrow", ".bz2", ".csv", ".feather", ".gz", ".ndjson", ".tsv", ".xz", ".zip", ".zst")
"""Endings of files that probably hold rows, and that are not read."""


def open_store(source: DataSource, base_dir: Path) -> RecordStore:
    """The records that a source names.

    Raises:
        DataError: The settings do not fit the source, or it does not exist.
    """
    if source.source is None:
        raise DataError("source", "no source is set", "Give a file, a folder or a generator")
    for _, what, remedy in source.problems():
        raise DataError(source.source, what, remedy)
    scheme, name = source.scheme()
    match SourceKind(scheme):
        case SourceKind.FILE:
            try:
                return _file_store(name, base_dir)
            except OSError as error:
                what = f"cannot be looked up: {error.strerror or error}"
                raise DataError(name, what, "Check the path and its permissions") from error
        case SourceKind.GENERATOR:
            records = generator_records(name, source.split or "")
            # The split is part of the identity: both splits of a generator are one data set.
            return SequenceStore(f"{source.source}/{source.split}", records)
        case SourceKind.REASONING_GYM:
            return reasoning_gym_store(name, source.size or 0, source.seed or 0, source.options)
        case SourceKind.HF:
            return hub_store(name, source.split or "")


def _file_store(name: str, base_dir: Path) -> RecordStore:
    path = base_dir / expand(name)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # Said below, with what there is instead.
    except ValueError as error:
        raise DataError(name, f"cannot be looked up: {error}", "Check the path") from error
    if path.is_dir():
        paths = _folder_files(path)
    elif path.is_file():
        paths = [path]
    elif path.exists() or path.is_symlink():
        raise DataError(name, "is no regular file", "Name a file or folder, or a link to one")
    elif name in MADE_BY:
        raise NotHere(name, f"there is no file {path}", MADE_BY[name])
    else:
        raise DataError(name, "there is no such file or folder", _missing_remedy(path))
    kinds = {path.suffix.lower() in PARQUET_SUFFIXES for path in paths}
    if any(path.suffix.lower() not in SUFFIXES for path in paths):
        ending = paths[0].suffix
        raise DataError(
            name,
            f"a file named *{ending} is not read" if ending else "its name has no ending",
            f"Convert it to one of {', '.join(SUFFIXES)}; compressed files are unpacked first",
        )
    if len(kinds) == 2:
        raise DataError(
            name, "the folder has JSON lines and Parquet files", "Name one, or part the folder"
        )
    store = ParquetStore(name, paths) if True in kinds else JsonlStore(name, paths)
    if path.is_dir():
        store.notices = list(_passed_over(name, path, paths))
    return store


def _folder_files(folder: Path) -> list[Path]:
    entries = sorted(folder.iterdir())
    # Hidden files are what editors and file systems leave behind.
    files = [
        entry
        for entry in entries
        if entry.suffix.lower() in SUFFIXES and not entry.name.startswith(".")
    ]
    for entry in files:
        # A data set with a part missing would be another one.
        if not entry.is_file():
            what = "is a link to nothing" if not entry.exists() else "is no regular file"
            raise DataError(str(entry), what, "Restore the file, or take it out of the folder")
    if files:
        return files
    has = ", ".join(entry.name for entry in entries[:5]) or "nothing"
    raise DataError(
        str(folder),
        f"the folder has no {', '.join(SUFFIXES)} file; it has {has}",
        "Folders below are not searched; name the one that holds the files",
    )


def _passed_over(name: str, folder: Path, read: Sequence[Path]) -> Iterator[str]:
    """What of a folder adds no row, although its name lets one expect some."""
    for path in read:
        if path.stat().st_size == 0:
            yield f"{name}: {path.name} is empty"
    others = [
        entry.name for entry in sorted(folder.iterdir()) if entry.suffix.lower() in OTHER_ROWS
    ]
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        yield f"{name}: not read: {', '.join(others[:3])}{more}; only {', '.join(SUFFIXES)} are"


def _missing_remedy(path: Path) -> str:
    parent = path.parent
    if not parent.is_dir():
        return f"The folder {parent} does not exist"
    names = [entry.name for entry in sorted(parent.iterdir())]
    near = get_close_matches(path.name, names, n=3, cutoff=0.6)
    if near:
        return f"Near names in {parent}: {', '.join(near)}"
    usable = [name for name in names if Path(name).suffix.lower() in SUFFIXES][:5]
    return f"Data files in {parent}: {', '.join(usable) or 'none'}"
