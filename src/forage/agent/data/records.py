"""Records of a file, each with the place it stands at, for errors that a person can act on."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from forage.errors import UserError

SUFFIXES = (".json", ".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class Record:
    """One object of a file; `where` names it: `train.jsonl:17`, `train.json record 17`."""

    where: str
    fields: dict[str, Any]


def read_records(path: str | Path) -> Iterator[Record]:
    """The records of a `.json` (a list), `.jsonl` or `.parquet` file, `.gz` or not, in order.

    Raises:
        UserError: if the file is missing, unreadable, malformed (with line and cause) or empty,
            or its name ends differently.
    """
    path = Path(path)
    name = path.name.removesuffix(".gz")
    kind = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)
    if kind is None:
        expected = ", ".join(SUFFIXES)
        raise UserError(f"{str(path)!r} must end in one of {expected} (each may be .gz)")
    read = {".json": _read_json, ".jsonl": _read_jsonl, ".parquet": _read_parquet}[kind]
    empty = True
    for record in read(path):
        empty = False
        yield record
    if empty:
        raise UserError(f"{str(path)!r} holds no records")


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The (unpacked) bytes of a file; what is wrong with it becomes a `UserError`."""
    try:
        with path.open("rb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    yield unpacked  # type: ignore[misc]
            else:
                yield raw
    except FileNotFoundError:
        raise UserError(f"no such file: {str(path)!r}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{str(path)!r} is no complete gzip file: {error}") from None
    except OSError as error:
        raise UserError(f"can't read {str(path)!r}: {error.strerror or error}") from None


def _read_jsonl(path: Path) -> Iterator[Record]:
    with opened(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            yield Record(where, _object(where, _parse(where, line)))


def _read_json(path: Path) -> Iterator[Record]:
    with opened(path) as file:
        content = file.read()
    if not content.strip():
        return
    values = _parse(str(path), content)
    if not isinstance(values, list):
        raise UserError(
            f"{str(path)!r} must hold a list of objects, holds {_kind_of(values)}; "
            "name a file of one object per line .jsonl"
        )
    for number, value in enumerate(values, 1):
        where = f"{path} record {number}"
        yield Record(where, _object(where, value))


def _parse(where: str, content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 ({error.reason} at byte {error.start})") from None
    except json.JSONDecodeError as error:
        line = f"line {error.lineno} " if error.lineno > 1 else ""
        hint = "; name a file of one object per line .jsonl" if error.msg == "Extra data" else ""
        raise UserError(
            f"{where}: malformed JSON: {error.msg} ({line}column {error.colno}){hint}"
        ) from None
    except RecursionError:
        raise UserError(f"{where}: malformed JSON: nested too deeply") from None


def _object(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected an object, found {_kind_of(value)}")
    return value


def _kind_of(value: Any) -> str:
    names = {dict: "one object", list: "a list", str: "a string", type(None): "null"}
    return names.get(type(value), f"{value!r}")


def _read_parquet(path: Path) -> Iterator[Record]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UserError(
            f"reading {str(path)!r} needs pyarrow: pip install 'forage-rl[parquet]'"
        ) from None
    with opened(path) as file:
        try:
            table = pq.read_table(pa.BufferReader(file.read()))
        except pa.ArrowException as error:
            raise UserError(f"{str(path)!r} is no readable Parquet file: {error}") from None
    number = 0
    for batch in table.to_batches(max_chunksize=1024):
        for fields in batch.to_pylist():
            number += 1
            yield Record(f"{path} row {number}", fields)
