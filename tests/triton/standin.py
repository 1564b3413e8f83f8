"""Triton's own path from a launcher to the driver, over a stand-in for libcuda (`standin.c`).

Kernels are compiled for sm_90, loaded and launched by Triton's driver module and C launchers; the
stand-in refuses what a driver refuses, and reads the parameters of each launch back. Nothing runs.
For a process of its own without TRITON_INTERPRET, in which `TRITON_LIBCUDA_PATH` and
`LD_LIBRARY_PATH` name the folder of the stand-in. ``python -m tests.triton.standin`` runs the
functions named ``check_*``, which `test_standin` reads.
"""

import ctypes
import itertools
import json
import os
import re
import time
import traceback
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaDriver, CudaLauncher, CudaUtils

from npu_kernels._triton import launchers, npu_large, npu_planes, repeat
from npu_kernels._triton.launch import Sizes
from tests.triton.mocked import calls

EPS = 1e-7
BITS = {"64": 8, "32": 4, "16": 2, "8": 1}  # of a type's name, in bytes
PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z](\d+)(?:\s+\.ptr[^,\n]*?)?\s+\w+(?:\[(\d+)\])?"
)


class Driver(CudaDriver):  # type: ignore[misc]
    """The driver of an absent H100, whose device memory is that of the processor."""

    def __init__(self) -> None:
        self.utils, self.launcher_cls = CudaUtils(), CudaLauncher

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


class Launch(NamedTuple):
    """What the driver was given."""

    kernel: str
    grid: tuple[int, int, int]
    threads: int
    shared: int  # bytes
    parameters: tuple[bytes, ...]


launches: list[Launch] = []
_alive: list[Any] = []
loaded: dict[int, Any] = {}  # compiled kernels by their handles


def _sizes(ptx: str) -> list[int]:
    """The bytes of each parameter of a kernel."""
    head = ptx[ptx.index(".entry") :]
    return [
        int(array or BITS[bits]) for bits, array in PARAMETER.findall(head[: head.index(")\n")])
    ]


def listen() -> None:
    """Make this process launch by the stand-in, and note every launch."""
    library: Any = ctypes.CDLL(os.path.join(os.environ["TRITON_LIBCUDA_PATH"], "libcuda.so.1"))
    triton.runtime.driver.set_active(Driver())
    kind = triton.compiler.CompiledKernel
    original = kind._init_handles

    def load(self: Any) -> None:
        original(self)
        loaded[self.function] = self

    def note(
        function: int, x: int, y: int, z: int, threads: int, shared: int, _: int, values: Any
    ) -> None:
        kernel = loaded[function]
        memory = tuple(
            ctypes.string_at(values[n], size) for n, size in enumerate(_sizes(kernel.asm["ptx"]))
        )
        launches.append(Launch(kernel.name, (x, y, z), threads, shared, memory))

    kind._init_handles = load
    numbers = [ctypes.c_uint64, *[ctypes.c_uint] * 5, ctypes.c_uint64]
    listener = ctypes.CFUNCTYPE(None, *numbers, ctypes.POINTER(ctypes.c_void_p))(note)
    library.standin_listen(listener)
    _alive.append((library, listener))


def _without_addresses(tensors: list[Tensor | None]) -> list[Any]:
    """The launches, with the address of each tensor replaced by its number, of others by "new"."""
    numbers = {t.data_ptr(): n for n, t in enumerate(tensors) if t is not None and t.numel()}

    def known(parameter: bytes) -> Any:
        """A tensor map begins with an address too."""
        if len(parameter) not in (8, 128):
            return parameter
        address = int.from_bytes(parameter[:8], "little")
        # A program's memory lies above 4 MiB; the numbers of these layers are smaller.
        return numbers.get(address, "new" if address >> 22 else address), parameter[8:72]

    return [launch._replace(parameters=tuple(map(known, launch.parameters))) for launch in launches]


Operands = list[Tensor | None]


def _large(
    rows: int, inputs: int, outputs: int, imaginary: bool = True, models: tuple[int, ...] = ()
) -> tuple[Operands, Operands]:
    """The operands of a large layer's forward and backward; none of their memory is touched.

    x is shared by the models, if there are several.
    """
    x, grad_y = torch.empty(rows, inputs), torch.empty(*models, rows, outputs)
    weight, weight_im = (torch.empty(*models, outputs, inputs) for _ in range(2))
    gate = torch.empty(*models, inputs)
    forward = [x, weight, weight_im if imaginary else None, gate]
    return forward, [grad_y, *forward, torch.empty_like(grad_y), torch.empty_like(grad_y)]


def _step(rows: int, inputs: int, outputs: int) -> None:
    (forward, backward), kernels = _large(rows, inputs, outputs), launchers()
    kernels["npu_forward"](*forward, EPS, True)
    kernels["npu_backward"](*backward, EPS, False, 15)


def check_parameters_of_replays() -> None:
    """A repeated call gives the driver what an ordinary call gives: grids, numbers, tensor maps."""
    cases = calls("npu", (100, 6, 2), torch.float32)
    for label, operands in (
        ("large", _large(256, 512, 512)),
        ("large high", _large(256, 512, 512)),
        ("large real", _large(256, 512, 512, imaginary=False)),
        ("large shared", _large(256, 512, 512, models=(3,))),
    ):
        cases[f"{label} npu_forward"] = operands[0], (EPS, True)
        cases[f"{label} npu_backward"] = operands[1], (EPS, False, 15)
    for label, (tensors, rest) in cases.items():
        operator = label.split()[-1]
        torch.set_float32_matmul_precision("high" if " high " in label else "highest")
        launcher = launchers()[operator]
        repeated, seen = repeat(operator, launcher), []
        for call in (launcher, repeated, repeated, repeated):
            launches.clear()
            results = list(call(*tensors, *rest))
            seen.append(_without_addresses([*tensors, *results]))
        assert seen[0], label
        assert all(entry == seen[0] for entry in seen), (label, seen)
        tapes = repeated.tapes.values()  # type: ignore[attr-defined]
        assert any(type(tape).__name__ == "Tape" for tape in tapes), (label, tapes)
    torch.set_float32_matmul_precision("highest")


def check_no_kernel_is_compiled_for_another_batch() -> None:
    """Neither for a last batch nor for an odd number of tiles or another size of the layer."""
    _step(4096, 640, 640)
    before = set(loaded)
    for sizes in ((300, 640, 640), (128, 640, 640), (65536, 512, 512), (16384, 1024, 1024)):
        _step(*sizes)
        new = [loaded[function].name for function in set(loaded) - before]
        assert not new, (sizes, new)


def check_no_kernel_is_compiled_for_other_addresses_of_parameters() -> None:
    """Small layers' weights and gate may be views of one flat vector; with many rows their gradients
    are sums of partial ones."""
    for rows, dtype in ((100, torch.float32), (9000, torch.float64)):
        seen, flat = [], torch.empty(60, dtype=dtype)
        for shift in range(4):
            weight, weight_im, gate = flat[shift : shift + 49].split([21, 21, 7])
            forward = [
                torch.empty(rows, 7, dtype=dtype),
                weight.view(3, 7),
                weight_im.view(3, 7),
                gate,
            ]
            y, s = launchers()["npu_forward"](*forward, EPS, True)
            launchers()["npu_backward"](torch.empty_like(y), *forward, y, s, EPS, False, 15)
            seen.append(set(loaded))
        assert seen[1:] == seen[:1] * 3, [loaded[f].name for f in seen[-1] - seen[0]]


PLANES = ("npu_x_planes_kernel", "npu_weight_planes_kernel", "npu_upstream_planes_kernel")


def check_widths_of_stores() -> None:
    """Planes are stored 16 bytes at a time: no float16 number goes out alone or in pairs."""
    _step(4096, 512, 512)
    widths = {}
    for kernel in loaded.values():
        if kernel.name in PLANES:
            stores = re.findall(r"st\.global((?:\.v\d)?\.b\d+)", kernel.asm["ptx"])
            widths[kernel.name] = {width: stores.count(width) for width in sorted(set(stores))}
    assert set(widths) == set(PLANES)
    for name in ("npu_x_planes_kernel", "npu_upstream_planes_kernel"):
        assert ".b16" not in widths[name], widths
        assert widths[name][".v4.b32"] >= 3, widths  # of as many planes, or more


def check_sizes_are_not_shifted_in_32_bits() -> None:
    """A number of elements that may exceed 2**27 is widened before it is multiplied."""
    _step(4096, 512, 512)
    sizes = {"plane", "scale_plane", "n_w", "n_x", "n_gate"}
    checked = set()
    for kernel in loaded.values():
        ptx, jit = kernel.asm["ptx"], kernel.src.fn
        constants = {path[0] for path in kernel.src.constants}
        names = [p.name for n, p in enumerate(jit.params) if n not in constants]
        if any("desc" in str(kind) for kind in kernel.src.signature.values()):
            continue  # a descriptor is several parameters; these kernels take sizes in rows
        for number, name in enumerate(names):
            if name in sizes:
                read = rf"ld\.param\.b32\s+(%r\d+), \[{kernel.name}_param_{number}\]"
                for register in re.findall(read, ptx):
                    shifted = re.search(rf"shl\.b32\s+%r\d+, {register}, \d+;", ptx)
                    assert shifted is None, (kernel.name, name, shifted and shifted[0])
                    checked.add(name)
    assert {"plane", "n_w", "n_gate"} <= checked, checked


def check_sizes_of_2_31_elements() -> None:
    """Parameters of planes whose elements, or those of several planes, exceed 32 bits."""
    kernel = npu_planes.npu_x_planes_kernel
    x, half, flags = torch.empty(16), torch.empty(16, dtype=torch.float16), torch.empty(4).int()
    for elements in (2**29, 2**30, 2**31):
        launches.clear()
        rows = elements // 512
        arguments = (x, x, half, flags, rows, 512, rows // 64, 4, elements)
        kernel[(1,)](*arguments, EPS, True, True, npu_planes.HI_LO, **npu_planes.OPTIONS)
        (launch,) = launches
        assert int.from_bytes(launch.parameters[8], "little") == elements


def check_which_waves_are_full() -> None:
    """backward_w leaves less than a tenth of the multiprocessors' time unused."""
    x = torch.empty(1)
    for precision, rows, width in itertools.product(
        ("highest", "high"), (4096, 16384, 65536), range(512, 2049, 64)
    ):
        torch.set_float32_matmul_precision(precision)
        sizes = Sizes(1, rows, width, width, True)
        shape = npu_planes.padded(sizes, True, True)
        plan = npu_large.plan_of(x, True, sizes)
        assert plan is not None
        assert plan.products == (3 if precision == "highest" else 1)
        tiles = shape.packed // plan.backward_w.rows * shape.tiles_i
        programs = plan.programs(plan.backward_w)
        splits, length = npu_large.row_splits(shape.tiles_b, tiles, programs)
        assert (splits - 1) * length < shape.tiles_b <= splits * length
        waves = -(-tiles * splits // programs)
        used = tiles * shape.tiles_b / (waves * programs * length)
        assert used > 0.9, (precision, width, rows, splits, used)
    torch.set_float32_matmul_precision("highest")


def main() -> None:
    torch.set_num_threads(1)
    listen()
    launchers()
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            begin, fault = time.perf_counter(), ""
            try:
                check()
            except Exception:
                fault = traceback.format_exc()
            print(json.dumps([name, fault, time.perf_counter() - begin]), flush=True)
    os._exit(0)  # without unloading


if __name__ == "__main__":
    main()
