"""A pretend device: its data is on the CPU, but its tensors claim another device and do not mix with CPU tensors.

Without a GPU it detects what would fail on one: a mask or a token left on the CPU, NumPy reading a device's memory, a
generator of another device. It does not simulate streams or memory limits, and code for "cuda" devices is not covered.
As on CUDA, copies, CPU indices and CPU scalars in elementwise operations may mix.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from unittest import mock
from weakref import WeakValueDictionary

import torch
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "pretend"
COPIES = ("aten::copy_", "aten::_to_copy", "aten::to")
INDEXED = ("aten::index", "aten::index_put", "aten::index_put_")


class DevicesMix(RuntimeError):
    """An operation was given tensors or a generator of several devices, which a GPU rejects."""


class PretendTensor(torch.Tensor):
    """A tensor on the pretend device; `data_on_cpu` has its values."""

    data_on_cpu: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, data_on_cpu: torch.Tensor) -> PretendTensor:
        with torch.inference_mode(False):  # PyTorch 2.11 cannot create views of a wrapper created in that mode
            self = torch.Tensor._make_wrapper_subclass(
                cls,
                data_on_cpu.shape,
                strides=data_on_cpu.stride(),
                storage_offset=data_on_cpu.storage_offset(),
                dtype=data_on_cpu.dtype,
                device=place(),
            )
        self.data_on_cpu = data_on_cpu
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    def __getitem__(self, index):  # modes do not see how lists are converted
        parts = index if isinstance(index, tuple) else (index,)
        return super().__getitem__(tuple(torch.tensor(part) if isinstance(part, list) else part for part in parts))

    def tolist(self):  # PyTorch does not support it for subclasses
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        raise DevicesMix("the address of a tensor on a device was asked for")


class _Generator(torch.Generator):
    """A generator that claims the requested device; operations receive only its address."""

    known: WeakValueDictionary[int, _Generator] = WeakValueDictionary()

    def __new__(cls, device: torch.device | str = "cpu") -> _Generator:
        self = super().__new__(cls)
        self.where = torch.device(device)
        cls.known[self._cdata] = self
        return self

    @property
    def device(self) -> torch.device:
        return self.where


class _Factories(TorchDispatchMode):
    """Handles tensors created on the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


@contextmanager
def pretend_device() -> Iterator[torch.device]:
    """Provide a second device in PyTorch within the context."""
    device = place()
    tensor = torch.tensor
    _device_constructors()  # caches PyTorch's original functions at its first call

    def made_here(data, *, device=None, **options):  # modes do not see how PyTorch moves a list
        return tensor(data, **options) if device is None else tensor(data, **options).to(device)

    with _Factories(), mock.patch.multiple(torch, Generator=_Generator, tensor=made_here):
        yield device


@cache
def place() -> torch.device:
    """Return the device; PyTorch allows only one registration."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME)
    return torch.device(NAME, 0)


def _run(func, args: tuple, kwargs: dict):
    flat = [*_leaves(args), *_leaves(list(kwargs.values()))]
    asked = next((part for part in flat if isinstance(part, torch.device)), None)
    there = any(isinstance(part, PretendTensor) for part in flat)
    name = func._schema.name
    if there:
        _check_places(func, name, args, flat)
    onto = there if asked is None else asked.type == NAME
    for part in flat:
        if isinstance(part, torch._C.Generator):
            where = _Generator.known.get(part._cdata, part).device
            if (where.type == NAME) != onto:
                raise DevicesMix(f"{name}: found a generator on {where}, expected one where the numbers are")
    given = _each(_plain, args)
    if name == "aten::histc":  # unlike a GPU's, the CPU's histogram does not take whole numbers
        given = (given[0].float(), *given[1:])
    found = func(*given, **_each(_plain, kwargs))
    if not onto and not there:
        return found
    wrappers = {id(part.data_on_cpu): part for part in flat if isinstance(part, PretendTensor)}
    ours = {id(part) for part in flat if isinstance(part, torch.Tensor)}
    crosses = name in COPIES and name != "aten::copy_" and onto != there

    def placed(part):
        if not isinstance(part, torch.Tensor) or part.device.type != "cpu":
            return part
        if crosses:  # copies between devices never share memory
            part = part.clone() if id(part) in ours or id(part) in wrappers else part
            return PretendTensor(part) if onto else part
        if id(part) in ours and id(part) not in wrappers:  # an output tensor on the CPU
            return part
        if id(part) in wrappers:
            whole = wrappers[id(part)]
            assert whole.shape == part.shape, f"{name} changes a shape in place, which this device does not follow"
            return whole
        return PretendTensor(part) if onto else part

    return _each(placed, found)


def _leaves(values) -> list:
    nested = [_leaves(value) if isinstance(value, list | tuple) else [value] for value in values]
    return [leaf for part in nested for leaf in part]


def _each(change, value):
    """Apply a function to all values in nested lists and dictionaries."""
    if isinstance(value, dict):
        return {key: _each(change, part) for key, part in value.items()}
    return type(value)(_each(change, part) for part in value) if type(value) in (list, tuple) else change(value)


def _plain(part):
    if isinstance(part, PretendTensor):
        return part.data_on_cpu
    return torch.device("cpu") if isinstance(part, torch.device) and part.type == NAME else part


def _check_places(func, name: str, args: tuple, flat: list) -> None:
    """Raise DevicesMix if tensors of both devices meet that must not."""
    if name in COPIES:
        return
    if name in INDEXED and isinstance(args[0], PretendTensor):
        flat = [args[0], *args[2:]]  # without the indices
    single = torch.Tag.pointwise in func.tags or name in INDEXED
    for part in flat:
        if isinstance(part, torch.Tensor) and part.device.type == "cpu" and not (single and part.ndim == 0):
            raise DevicesMix(f"{name}: found a tensor {tuple(part.shape)} on the CPU among others on a device")
