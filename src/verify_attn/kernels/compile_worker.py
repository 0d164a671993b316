"""The compiling process of `verify_attn.kernels.compiled`: ``python -m``, JSON on both ends.

It runs each kernel's own ``plan`` and ``run`` on small CPU tensors behind a driver that claims the
wanted architecture.  A hook takes the launches before Triton compiles them, so the signature, the
specialised integers and the options are those of a real launch and cannot drift from it.

In: one request object.  Out: one object a line, ``total``, then ``start`` and ``done`` of each
launch of this share, then ``end``; ``fatal`` if nothing can be compiled.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from verify_attn.generate import DTYPES
from verify_attn.geometry import preset
from verify_attn.kernels.builtin import BUILTIN
from verify_attn.kernels.compiled import Setting
from verify_attn.kernels.resources import THREADS_PER_WARP, parse_ptxas
from verify_attn.problem import VerifyBatch

# An odd width of the page table: its stride is a multiple of nothing.
TABLE_WIDTH = 1001


@dataclass(frozen=True)
class Launch:
    """One launch as Triton would compile it, and the setting that led to it."""

    setting: Setting
    hooked: dict[str, Any]

    @property
    def function(self) -> Any:
        return self.hooked["fn"].jit_function

    def key(self) -> str:
        return f"{self.hooked['fn'].name} {self.hooked['key']}"

    def identity(self) -> dict[str, Any]:
        """What tells this launch from others: the constants, by argument name."""
        names = self.function.arg_names
        constants = {names[path[0]]: v for path, v in self.hooked["compile"]["constants"].items()}
        options = {name: self.hooked["compile"][name] for name in ("num_warps", "num_stages")}
        return {
            "setting": asdict(self.setting),
            "function": self.hooked["fn"].name,
            "arguments": list(names),
            "constants": constants | options,
        }

    def compile(self, target: GPUTarget) -> dict[str, Any]:
        """Compile as the launch would; Triton prints the log of the ptxas that it chose."""
        made = self.hooked["compile"]
        given = json.loads(made["specialization_data"])["options"]
        options = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
        source = triton.compiler.ASTSource(
            self.function, made["signature"], made["constants"], made["configs"][0]
        )
        log = io.StringIO()
        with contextlib.redirect_stdout(log):
            kernel = triton.compile(source, target=target, options=options)
        columns = getattr(kernel.metadata, "tmem_size", None) or 0
        return asdict(
            parse_ptxas(log.getvalue(), kernel.metadata.num_warps, kernel.metadata.shared, columns)
        )


class Driver:
    """As much of a Triton driver as a launch asks for before it compiles."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def batch_of(setting: Setting) -> VerifyBatch:
    """A batch with the setting's shapes, strides and bounds.  Its values are never read."""
    geometry, dtype = preset(setting.geometry), DTYPES[setting.dtype]
    rows = setting.nodes, geometry.qk_dim
    return VerifyBatch(
        geometry=geometry,
        q=torch.empty(setting.nodes, geometry.heads, geometry.qk_dim, dtype=dtype),
        kv_pool=torch.empty(1, setting.page_size, geometry.qk_dim, dtype=dtype),
        page_table=torch.empty(1, TABLE_WIDTH, dtype=torch.int32),
        prefix_lens=torch.empty(1, dtype=torch.int32),
        node_offsets=torch.empty(2, dtype=torch.int32),
        tree_mask=torch.empty(setting.nodes, -(-setting.nodes // 64), dtype=torch.int64),
        softmax_scale=geometry.softmax_scale,
        max_prefix_len=setting.prefix,
        max_nodes=setting.nodes,
        node_kv=torch.empty(rows, dtype=dtype) if setting.own_rows else None,
    )


def launches(
    settings: list[Setting], capability: tuple[int, int], tile: dict[str, int] | None
) -> list[Launch]:
    """What the kernels launch in these settings, each distinct launch once."""
    found: dict[str, Launch] = {}
    for setting in settings:
        module_name, _, class_name = BUILTIN[setting.kernel].partition(":")
        module: Any = importlib.import_module(module_name)
        # What a plan asks the GPU for.
        module.architecture = lambda device: capability
        module.INTERPRETER_SPLITS = setting.ranges
        if tile is not None:
            common = importlib.import_module("verify_attn.kernels.triton_common")
            module.TILES = {capability: replace(common.pick(module.TILES, capability), **tile)}
        kernel, batch = getattr(module, class_name)(), batch_of(setting)
        hooked: list[dict[str, Any]] = []
        with _hook(hooked):
            kernel.run(batch, kernel.plan(batch), *batch.outputs())
        for one in hooked:
            launch = Launch(setting, one)
            found.setdefault(launch.key(), launch)
    return list(found.values())


@contextlib.contextmanager
def _hook(into: list[dict[str, Any]]) -> Iterator[None]:
    """Collect launches instead of compiling them: a true answer tells Triton to stop there."""

    def take(**launch: Any) -> bool:
        into.append(launch)
        return True

    triton.knobs.runtime.jit_cache_hook = take
    try:
        yield
    finally:
        triton.knobs.runtime.jit_cache_hook = None


def serve(request: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Compile this process's share of the launches, from index ``after`` + 1 on."""
    major, minor = request["capability"]
    target = GPUTarget("cuda", 10 * major + minor, THREADS_PER_WARP)
    triton.runtime.driver.set_active(Driver(target))
    try:
        from triton.backends.nvidia.compiler import get_ptxas

        compiler = f"triton {triton.__version__}, ptxas {get_ptxas(target.arch).version}"
    except RuntimeError as error:
        say({"fatal": f"Triton {triton.__version__} is here without its ptxas: {error}"})
        return
    settings = [Setting(**one) for one in request["settings"]]
    todo = launches(settings, (major, minor), request["tile"])
    say({"total": len(todo)})
    for index, launch in enumerate(todo):
        if index <= request["after"] or index % request["shares"] != request["share"]:
            continue
        say({"start": index, "compiler": compiler, **launch.identity()})
        began = time.perf_counter()
        outcome: dict[str, Any] = {"resources": None, "error": None}
        try:
            outcome["resources"] = launch.compile(target)
        except Exception as error:
            outcome["error"] = f"{type(error).__name__}: {error}"[:1500]
        say({"done": index, "seconds": time.perf_counter() - began, **outcome})
    say({"end": True})


def main() -> None:
    """Serve the request on stdin; what Triton and LLVM print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    serve(json.load(sys.stdin), say)


if __name__ == "__main__":
    main()
