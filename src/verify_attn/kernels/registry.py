"""Kernels by name: our own, those of other projects, or anyone's as ``package.module:name``."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable

from verify_attn.environment import triton_setting
from verify_attn.kernels.base import (
    FunctionKernel,
    KernelError,
    ObjectKernel,
    VerifyKernel,
    declared,
)
from verify_attn.kernels.builtin import BUILTIN
from verify_attn.kernels.peers import PEERS
from verify_attn.tracebacks import user_traceback as user_traceback

MOST_NAMES = 40


def load(name: str) -> VerifyKernel:
    """The built-in or the peer of that name, or the object at ``package.module:name``.

    Raises `KernelError` with what was given, the rule and, if the user's module itself failed,
    the traceback of the user's code.
    """
    if name in BUILTIN:
        choose_triton_mode()
        return _wrap(name, _resolve(BUILTIN[name]))
    if name in PEERS:
        if missing := PEERS[name].missing():
            raise KernelError(f"{name} cannot be used here: {missing}")
        choose_triton_mode()
        return _wrap(name, _resolve(PEERS[name].path))
    if ":" not in name:
        raise KernelError(
            f"no kernel {name!r}; give one of {', '.join(BUILTIN)}, package.module:name, or a "
            f"kernel of another project: {', '.join(PEERS)}"
        )
    choose_triton_mode()
    return _wrap(name, _resolve(name))


def lacking(kernel: VerifyKernel) -> str | None:
    """What a kernel needs that is not here: a GPU of its architectures, or its compiler."""
    import torch

    able = kernel.capabilities.architectures
    if able is not None:
        named = ", ".join(f"{major}.{minor}" for major, minor in able)
        if not torch.cuda.is_available():
            return f"it needs a GPU of compute capability {named}"
        if (here := torch.cuda.get_device_capability()) not in able:
            return f"it is for compute capability {named}, this GPU has {here[0]}.{here[1]}"
    missing: str | None = getattr(getattr(kernel, "target", None), "missing", None)
    return missing


def choose_triton_mode() -> bool:
    """Without a GPU, let Triton interpret; returns True if it will.

    Triton reads the variable when a kernel is defined, so this comes before the import.
    """
    import torch

    if triton_setting() is None and not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    return bool(triton_setting())


def _resolve(path: str) -> object:
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise KernelError(f"{path!r} is not of the form package.module:name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` would find it
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            hint = "; give the module's name, not its file" if ".py" in module_name else ""
            raise KernelError(
                f"{path!r}: no module {missing!r} on the path or in {os.getcwd()}{hint}"
            ) from None
        raise KernelError(f"{path!r}: importing it needs {missing!r}, which is not here") from None
    except (Exception, SystemExit) as error:
        raise KernelError(f"{path!r}: importing it raised\n{user_traceback(error)}") from None
    target: object = module
    for part in attribute.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            names = [n for n in dir(target) if not n.startswith("_")]
            names[MOST_NAMES:] = ["..."] if len(names) > MOST_NAMES else []
            raise KernelError(
                f"{path!r}: no {part!r} in {module_name}; it has: {', '.join(names)}"
            ) from None
        except Exception as error:  # a lazy module's or a property's own
            raise KernelError(f"{path!r}: {part} raised\n{user_traceback(error)}") from None
    return target


def _wrap(name: str, target: object) -> VerifyKernel:
    if inspect.isclass(target):
        try:
            target = target()
        except (Exception, SystemExit) as error:
            raise KernelError(f"{name!r}: making it raised\n{user_traceback(error)}") from None
    capabilities = declared(target)
    run = getattr(target, "run", None)
    # An object's own run comes first; Triton's JITFunction has one too but is no kernel of ours.
    if callable(run) and not inspect.isfunction(target) and not hasattr(target, "arg_names"):
        _check_signature(name, run, ("batch", "plan", "out", "lse"))
        plan = getattr(target, "plan", None)
        if plan is not None:
            _check_signature(name, plan, ("batch",))
        prepare = getattr(target, "prepare", None)
        if prepare is not None:
            _check_signature(name, prepare, ("batch", "plan"))
        return ObjectKernel(name, target, capabilities)
    if callable(target) and not hasattr(target, "arg_names"):
        _check_signature(name, target, ("batch", "out", "lse"))
        return FunctionKernel(name, target, capabilities)
    raise KernelError(
        f"{name!r} is a {type(target).__name__}; a kernel is a function f(batch, out, lse) or an "
        "object with run(batch, plan, out, lse)"
    )


def _check_signature(name: str, call: Callable[..., object], takes: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return  # builtins and extensions may have none to read; the first call will tell
    try:
        signature.bind(*takes)
    except TypeError:
        what = getattr(call, "__name__", type(call).__name__)
        raise KernelError(
            f"{name!r}: {what}{signature} has the wrong signature; it is called as "
            f"{what}({', '.join(takes)})"
        ) from None
