"""Checkpoints on a disk: the model as safetensors, in Hugging Face's layout.

The format: eight bytes (little-endian) that say how long the header is, a header in JSON with the type, shape and place of each
tensor, then the values. <https://huggingface.co/docs/safetensors/index>
"""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any, Dict, List, Tuple, Union

# As the format's own library has it, in bytes.
HEADER_BYTES_MAX = 100_000_000
# Bytes of a value, and NumPy's name of its type; those that have none are widened.
TYPES = {
    "F64": (8, "<f8"),
    "F32": (4, "<f4"),
    "F16": (2, "<f2"),
    "BF16": (2, "<u2"),
    "F8_E5M2": (1, "u1"),
    "F8_E4M3": (1, "u1"),
    "U64": (8, "<u8"),
    "U32": (4, "<u4"),
    "U16": (2, "<u2"),
    "I64": (8, "<i8"),
    "I32": (4, "<i4"),
    "I16": (2, "<i2"),
    "I8": (1, "i1"),
    "U8": (1, "u1"),
    "BOOL": (1, "?"),
}


class DamagedCheckpoint(Exception):
    """A file that is not what its format says."""


class Checkpoint:
    """The model of a run after so many rounds: ``folder`` is one ``round-000120``."""

    def __init__(self, folder: Union[str, Path]):
        self.folder = Path(folder)
        self._file = self.folder / "model.safetensors"
        self._tensors, self._begin = _read_header(self._file)

    @property
    def round(self) -> int:
        """The round that follows those that it contains."""
        return _round_of(self.folder)

    @property
    def config(self) -> Dict[str, Any]:
        """Hugging Face's ``config.json``."""
        return json.loads((self.folder / "config.json").read_text())

    def names(self) -> List[str]:
        """The tensors, in the order of the file's header."""
        return list(self._tensors)

    def shape(self, name: str) -> Tuple[int, ...]:
        """The shape of a tensor."""
        return tuple(self._tensors[name]["shape"])

    def tensors(self) -> Dict[str, Any]:
        """All tensors as NumPy arrays, which the file stays behind: nothing is read before it is used."""
        return {name: self.tensor(name) for name in self._tensors}

    def tensor(self, name: str) -> Any:
        """A tensor as a NumPy array; of bfloat16 and eight-bit floats as float32, copied."""
        import numpy

        entry = self._tensors[name]
        start, _ = entry["data_offsets"]
        dtype = numpy.dtype(TYPES[entry["dtype"]][1])
        shape = tuple(entry["shape"])
        if 0 in shape:
            values = numpy.empty(shape, dtype)
        else:
            values = numpy.memmap(self._file, dtype, "r", offset=self._begin + start, shape=shape)
        if entry["dtype"] == "BF16":
            return (values.astype(numpy.uint32) << 16).view(numpy.float32)
        if entry["dtype"] == "F8_E5M2":
            return (values.astype(numpy.uint16) << 8).view(numpy.float16).astype(numpy.float32)
        if entry["dtype"] == "F8_E4M3":
            return numpy.array([_e4m3(byte) for byte in range(256)], numpy.float32)[values]
        return values

    def frame(self) -> Any:
        """A pandas frame with a row for each tensor: shape, count, mean, deviation and largest magnitude."""
        import numpy
        import pandas

        rows = []
        for name in self._tensors:
            values = numpy.asarray(self.tensor(name), dtype=numpy.float64)
            some = values.size > 0
            rows.append(
                {
                    "name": name,
                    "shape": self.shape(name),
                    "count": values.size,
                    "mean": values.mean() if some else numpy.nan,
                    "deviation": values.std() if some else numpy.nan,
                    "largest": numpy.abs(values).max() if some else numpy.nan,
                }
            )
        return pandas.DataFrame(rows).set_index("name")

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.folder)!r})"


def checkpoints(folder: Union[str, Path]) -> List[Checkpoint]:
    """The whole models below a run's ``checkpoint.dir``, oldest first. Models in parts have none. Of those that are damaged, a warning
    tells; those that a run throws away meanwhile are left out."""
    found = [path.parent for path in Path(folder).glob("**/round-*/model.safetensors")]
    # What is still being written has a hidden folder.
    whole = [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    sound = []
    for path in sorted((path for path in whole if _ROUND.fullmatch(path.name)), key=_round_of):
        try:
            sound.append(Checkpoint(path))
        except FileNotFoundError:
            continue
        except DamagedCheckpoint as error:
            warnings.warn(str(error), stacklevel=2)
    return sound


_ROUND = re.compile(r"round-(\d+)")


def _e4m3(byte: int) -> float:
    """Eight bits: a sign, four of an exponent, three of a mantissa, no infinity (Micikevicius et al., 2022)."""
    sign, exponent, mantissa = -1.0 if byte & 0x80 else 1.0, byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def _round_of(folder: Path) -> int:
    match = _ROUND.fullmatch(folder.name)
    if match is None:
        raise DamagedCheckpoint(f"{folder} is not called round-NUMBER, as checkpoints are")
    return int(match.group(1))


def _read_header(path: Path) -> Tuple[Dict[str, Any], int]:
    """The entries of the tensors, and where their values begin. All that is asked of them later is checked here."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(HEADER_BYTES_MAX, size - 8):
            raise DamagedCheckpoint(f"{path}: a header of {length} bytes does not fit the file")
        try:
            header = json.loads(file.read(length))
            tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
            for name, entry in tensors.items():
                _check(name, entry, size - 8 - length)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedCheckpoint(f"{path}: {error}") from error
    return tensors, 8 + length


def _check(name: str, entry: Dict[str, Any], room: int) -> None:
    start, end = entry["data_offsets"]
    if entry["dtype"] not in TYPES:
        raise ValueError(f"{name} has a type that is not known: {entry['dtype']}")
    count = 1
    if type(start) is not int or type(end) is not int:
        raise ValueError(f"{name} lies at {start} to {end}, which are no whole numbers")
    for length in entry["shape"]:
        if type(length) is not int or length < 0:
            raise ValueError(f"{name} has the shape {entry['shape']}")
        count *= length
    if not 0 <= start <= end <= room or end - start != count * TYPES[entry["dtype"]][0]:
        raise ValueError(f"{name} lies at {start} to {end}, which is not where its shape fits")
