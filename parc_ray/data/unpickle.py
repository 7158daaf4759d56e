"""Reading pickles of strangers without running anything that is in them.

PARC and MimicKit publish motions as pickles. ``safe_load`` reads them with an allow-list: plain
containers and numbers, numpy arrays and scalars (under numpy 1 and numpy 2 module names) and torch
tensors, whose inner archives go through ``torch.load(weights_only=True)``. Everything else in a
file is refused before it is looked up (docs/design/data.md, Safe reading). Two formats need more
and ask for it: arrays of objects, and instances of classes, which become inert ``Record`` objects.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch._utils import _rebuild_tensor_v2

from parc_ray.errors import InputError

_MAX_EXPANDED = 2**20
"""Elements that a tensor may have beyond its storage (steps of zero repeat elements)."""

LFS_MAGIC = b"version https://git-lfs.github.com/spec/"


class _Call:
    """A function that a pickle may call but whose attributes it cannot change."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __setattr__(self, name: str, value: Any) -> None:
        raise pickle.UnpicklingError(f"attempt to change {name} of a function")


class Opaque:
    """Stands for an object of a class that is not known here; keeps nothing and does nothing."""

    __slots__ = ()

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Opaque:
        """Ignore whatever the file hands to the constructor."""
        return super().__new__(cls)

    def __setstate__(self, _state: Any) -> None:
        """Ignore the stored attributes."""


class Record:
    """Stands for an instance of a class that was asked for: keeps what was stored, does nothing."""

    __slots__ = ("args", "fields")

    def __new__(cls, *args: Any) -> Record:
        """Keep what the file hands to the constructor."""
        self = super().__new__(cls)
        self.args = args
        self.fields = {}
        return self

    def __setstate__(self, state: Any) -> None:
        """Keep the stored attributes, those of ``__slots__`` too."""
        parts = state if isinstance(state, tuple) else (state,)
        for part in parts:
            if isinstance(part, dict):
                self.fields.update({str(k): v for k, v in part.items() if isinstance(k, str)})


def _bytearray(*args: Any) -> bytearray:
    if len(args) == 2 and isinstance(args[0], str):
        return bytearray(_encode_latin1(*args))
    if not args or (len(args) == 1 and isinstance(args[0], (bytes, bytearray))):
        return bytearray(*args)
    raise pickle.UnpicklingError("bytearray of something else than bytes")  # a number reserves it


def _encode_latin1(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not used by array files")
    return text.encode("latin1")


class _Dtype:
    """A plain element type: numbers, booleans or text.

    What a file says of it beyond the byte order is not believed, because a forged one would make
    raw bytes pass for objects.
    """

    __slots__ = ("value",)

    def __init__(self, name: str, *_: Any) -> None:
        self.value = np.dtype(str(name))
        if self.value.kind not in "biufcSU" or self.value.subdtype is not None:
            raise pickle.UnpicklingError(f"arrays of {name!r} are not allowed")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", ">"):
            self.value = self.value.newbyteorder(state[1])


class _Objects:
    """The element type of arrays of objects."""

    __slots__ = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Nothing of it matters."""


class _Array(np.ndarray):
    """An array that takes its content only as raw bytes of a plain element type.

    Arrays of objects take theirs only as a list, and only where these were asked for: ``_Objects``
    cannot be made otherwise.
    """

    def __setstate__(self, state: tuple[Any, ...], /) -> None:
        _, shape, dtype, fortran, raw = state
        if isinstance(dtype, _Objects):
            if not isinstance(raw, list) or math.prod(shape) != len(raw):
                raise pickle.UnpicklingError("array of objects without one object per element")
            content: Any = (1, shape, np.dtype(object), bool(fortran), raw)
            super().__setstate__(content)
            return
        plain: Any = (1, shape, _plain_dtype(dtype), bool(fortran), bytes(raw))
        super().__setstate__(plain)


_NDARRAY = object()


def _plain_dtype(dtype: Any) -> np.dtype:
    if not isinstance(dtype, _Dtype):
        raise pickle.UnpicklingError("array without a plain element type")
    return dtype.value


def _dtype_or_objects(name: str, *_: Any) -> _Dtype | _Objects:
    return _Objects() if str(name) in ("O", "O8", "O4", "|O") else _Dtype(name)


def _reconstruct(kind: Any, *_: Any) -> np.ndarray:
    if kind is not _NDARRAY:
        raise pickle.UnpicklingError(f"arrays of class {kind!r} are not allowed")
    return _Array((0,), np.int8)


def _scalar(dtype: Any, raw: bytes) -> Any:
    return np.frombuffer(raw, _plain_dtype(dtype), count=1)[0]


def _from_buffer(buffer: Any, dtype: Any, shape: Any, order: str, *_: Any) -> np.ndarray:
    flat = np.frombuffer(bytes(buffer), _plain_dtype(dtype))
    return flat.reshape(shape, order="F" if order == "F" else "C")


def _tensor_storage(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def _rebuild_tensor(
    storage: Any,
    offset: int,
    size: Any,
    stride: Any,
    grad: bool = False,
    hooks: Any = None,
    *_: Any,
) -> torch.Tensor:
    count = math.prod(int(n) for n in size)
    stored = storage._untyped_storage.nbytes() // storage._element_size()  # the public ones warn
    if count > max(_MAX_EXPANDED, stored):
        raise pickle.UnpicklingError(f"tensor of {count} elements exceeds what is stored of it")
    return _rebuild_tensor_v2(
        storage, offset, tuple(size), tuple(stride), bool(grad), OrderedDict()
    )


def _device(*words: Any) -> str:
    return ":".join(str(word) for word in words if isinstance(word, str | int))


def _size(sizes: Any = ()) -> tuple[Any, ...]:
    return tuple(sizes)


_TORCH_TYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8", "bool")
"""Element types, as objects keep them beside their tensors; read as their names."""

_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Call(_Dtype),
    ("_codecs", "encode"): _Call(_encode_latin1),
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _Call(_rebuild_tensor),
    ("torch.storage", "_load_from_bytes"): _Call(_tensor_storage),
    ("torch", "device"): _Call(_device),
    ("torch", "Size"): _Call(_size),
    **{("torch", name): name for name in _TORCH_TYPES},
}
for _package in ("numpy.core", "numpy._core"):
    _ALLOWED[f"{_package}.multiarray", "_reconstruct"] = _Call(_reconstruct)
    _ALLOWED[f"{_package}.multiarray", "scalar"] = _Call(_scalar)
    _ALLOWED[f"{_package}.numeric", "_frombuffer"] = _Call(_from_buffer)

for _module in ("builtins", "__builtin__"):
    for _type in (set, frozenset, complex):
        _ALLOWED[_module, _type.__name__] = _type
    _ALLOWED[_module, "bytearray"] = _Call(_bytearray)

RecordFilter = Callable[[str, str], bool]
"""Says of a class, by module and name, whether its instances are read as ``Record``."""

_SIZED = frozenset(("PUT", "BINPUT", "LONG_BINPUT", "FRAME"))
_NEVER_OPAQUE = frozenset(sys.stdlib_module_names) | {"__builtin__", "numpy", "torch", "parc_ray"}


def _check_sizes(data: bytes) -> None:
    """Refuse sizes and memo numbers beyond the file's own length: they would reserve memory.

    Walking the opcodes executes nothing; truncated arguments raise.
    """
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _SIZED and not 0 <= int(argument or 0) <= len(data):
            raise pickle.UnpicklingError(f"{opcode.name} {argument} exceeds the file")


class _SafeUnpickler(pickle.Unpickler):
    def __init__(
        self, data: bytes, name: str, opaque: bool, objects: bool, records: RecordFilter | None
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._name = name
        self._opaque = opaque
        self._objects = objects
        self._records = records

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if self._objects and (module_name, global_name) == ("numpy", "dtype"):
            return _Call(_dtype_or_objects)
        allowed = _ALLOWED.get((module_name, global_name))
        if allowed is not None:
            return allowed
        if module_name.split(".")[0] not in _NEVER_OPAQUE:
            if self._records is not None and self._records(module_name, global_name):
                return Record
            if self._opaque:
                return Opaque
        raise InputError(
            f"{self._name}: the pickle asks for {module_name}.{global_name}, which could run code; "
            "allowed are plain containers, numpy arrays and torch tensors; do not use this file, "
            "or save its arrays anew without custom classes"
        )

    def persistent_load(self, pid: Any, /) -> Any:
        raise pickle.UnpicklingError("reference to an object outside the file")


def check_not_pointer(head: bytes, name: str) -> None:
    """Refuse what was never downloaded: empty files and Git LFS pointers.

    Args:
        head: first bytes of the file (128 suffice).
        name: what to call the file in messages.

    Raises:
        InputError: the file is empty or a Git LFS pointer.
    """
    if not head:
        raise InputError(
            f"{name}: file is empty; a motion file is needed; fetch or copy the file again"
        )
    if head.startswith(LFS_MAGIC):
        raise InputError(
            f"{name}: Git LFS pointer instead of the file's content; the real file is needed; "
            "run 'git lfs pull' where it was cloned, or download the file itself"
        )


def safe_load(
    data: bytes,
    name: str,
    *,
    opaque: bool = False,
    objects: bool = False,
    records: RecordFilter | None = None,
) -> Any:
    """Read one pickle without looking up anything beyond the allow-list.

    Args:
        data: the whole pickle.
        name: what to call it in messages (file, or file and field).
        opaque: read instances of classes unknown here (but never of the standard library, numpy,
            torch or this project) as inert ``Opaque`` objects instead of refusing the file. For
            optional side data only.
        objects: read numpy arrays of objects (their elements as everything else).
        records: of which classes unknown here instances are read as ``Record``; the same classes
            as with ``opaque`` are never read.

    Returns:
        Plain containers, numpy arrays and torch tensors.

    Raises:
        InputError: empty file, LFS pointer, a forbidden global, truncated or damaged data.
    """
    check_not_pointer(data[:128], name)
    try:
        _check_sizes(data)
        return _SafeUnpickler(data, name, opaque, objects, records).load()
    except InputError:
        raise
    except Exception as error:  # a damaged pickle may fail in any way at all
        raise InputError(
            f"{name}: not a readable pickle ({type(error).__name__}: {error}); a complete, "
            "undamaged file is needed; fetch or write the file again"
        ) from error
