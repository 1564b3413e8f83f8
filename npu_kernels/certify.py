"""Neural Power Unit, a layer: does all of it work here? ``python -m npu_kernels.certify``

Runs one matrix on this torch, every device and every instruction set of this machine: values against mpmath, gradients
to second order, transforms, compile, export, autocast, special values, copies, threads, processes. Prints it, and
writes a report as JSON and Markdown with the versions. Ends with 1 if anything fails, else 0. Under two minutes on two
cores.

A cell is what was measured: "ok", a number, or "n/a" with the reason why it cannot run here (no C++ compiler, a package
that is not installed); a check that fails says how. Nothing is taken from another run.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import functools
import io
import json
import math
import os
import pickle
import shutil
import socket
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from npu_kernels import NAU, NMU, NPU, dispatch, env, functional, iNALU, interop, ops, reference, trace, use_backend
from npu_kernels.backends import cpu
from npu_kernels.testing import RECORDS, Sample, error_bound, fill_uninitialized_with_nan, relative_error, with_layout

ROUNDING = 1e-11  # of float64
# torch's own defaults let an error of one part in a thousand pass.
TIGHT: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-7}
FUSED = ("npu", "nmu")


class Unavailable(Exception):
    """A check cannot run here, and why."""


@dataclass(frozen=True)
class Column:
    """Where a check runs: a backend, a device and, on the CPU, an instruction set."""

    backend: str
    device: str = "cpu"
    isa: str | None = None

    @property
    def name(self) -> str:
        """As in the table."""
        return f"{self.backend} {self.isa}" if self.isa else f"{self.backend} on {self.device}"

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Force it."""
        before = cpu.isa() if self.isa else None
        try:
            if self.isa:
                cpu.set_isa(self.isa)
            with use_backend(self.backend):
                yield
        finally:
            if before:
                cpu.set_isa(before)


@dataclass(frozen=True)
class Result:
    """One cell."""

    check: str
    column: str
    status: str  # "ok", "fail" or "n/a"
    detail: str
    seconds: float


CHECKS: dict[str, Callable[[Column], str | None]] = {}


def check(title: str) -> Callable[[Callable[[Column], str | None]], Callable[[Column], str | None]]:
    """Register a row of the table: returns a detail for its cell, raises if it fails."""

    def register(function: Callable[[Column], str | None]) -> Callable[[Column], str | None]:
        CHECKS[title] = function
        return function

    return register


def _equal(actual: Tensor, expected: Tensor, tolerance: float, what: str) -> float:
    error = relative_error(actual.cpu(), expected.cpu())
    if not error <= tolerance:
        raise AssertionError(f"{what}: relative error {error:.2g}, at most {tolerance:.2g} allowed")
    return error


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def _leaves(name: str, column: Column, rows: int = 3, **options: Any) -> list[Tensor]:
    """A sample away from the places without a derivative."""
    sample = RECORDS[name].sample(rows, 3, 2, device=column.device, **options).requires_grad()
    with torch.no_grad():
        sample.x.add_(0.25 * sample.x.sign())
        for tensor in sample.leaves()[1:]:
            for clip in (0, 1):
                near = (tensor - clip).abs() < 0.05
                tensor.add_(0.1 * near * (tensor - clip).sign())
    return sample.leaves()


def _model(column: Column, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    options: Any = {"dtype": dtype, "device": column.device}
    return nn.Sequential(
        NPU(3, 6, init_im=0.3, **options), NAU(6, 4, **options), NMU(4, 3, **options), iNALU(3, 2, **options)
    )


def _x(column: Column, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(column.device, dtype)


def _step(function: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.detach().clone().requires_grad_()
    loss = function(x).square().mean()
    return [loss.detach(), *torch.autograd.grad(loss, [x, *model.parameters()])]


# ---- values ---------------------------------------------------------------------------------------------------------


def _exact_npu(x: list[float], re: list[float], im: list[float], gate: list[float], eps: float) -> tuple[Any, Any]:
    """(y, exp P) of one output of one row with 50 digits, as a product of complex powers."""
    from mpmath import mp, mpf

    total = mp.mpc(0)
    for value, a, b, g in zip(x, re, im, gate, strict=True):
        clipped = min(max(mpf(g), mpf(0)), mpf(1))
        r = clipped * (abs(mpf(value)) + mpf(eps)) + 1 - clipped
        total += mp.mpc(a, b) * mp.mpc(mp.log(r), mp.pi * clipped if value < 0 else 0)
    power = mp.exp(total)
    return mp.re(power), abs(power)


def _ulp(column: Column, dtype: torch.dtype) -> str:
    try:
        from mpmath import mp
    except ImportError:
        raise Unavailable("mpmath is not installed") from None
    sample = RECORDS["npu"].sample(12, 9, 5, dtype=dtype, device=column.device)
    eps = torch.finfo(dtype).eps
    actual, eager = (sample.call(f).double().cpu().tolist() for f in (functional.npu, reference.npu))
    tensors = [t.double().cpu().tolist() for t in sample.leaves()]
    ours = theirs = 0.0
    with mp.workdps(50):
        for b, row in enumerate(tensors[0]):
            for o in range(5):
                y, size = _exact_npu(row, tensors[1][o], tensors[2][o], tensors[3], eps)
                ours = max(ours, float(abs(actual[b][o] - y) / size) / eps)
                theirs = max(theirs, float(abs(eager[b][o] - y) / size) / eps)
    _require(ours <= error_bound(theirs * eps, dtype) / eps, f"{ours:.1f} ulp of exp(P), eager {theirs:.1f}")
    return f"{ours:.1f} ulp (eager {theirs:.1f})"


@check("error of the NPU, float32, against mpmath")
def _ulp32(column: Column) -> str:
    return _ulp(column, torch.float32)


@check("error of the NPU, float64, against mpmath")
def _ulp64(column: Column) -> str:
    return _ulp(column, torch.float64)


@check("all sizes, layouts and models against the eager formula, memory filled with nan")
def _parity(column: Column) -> None:
    for name in FUSED:
        for sample in RECORDS[name].samples(torch.float64, column.device):
            leaves = sample.map(lambda t: t.detach().requires_grad_())
            before = [leaf.detach().clone() for leaf in leaves.leaves()]
            expected = leaves.call(RECORDS[name].reference)
            upstream = with_layout(torch.ones_like(expected), "expanded")
            wanted = torch.autograd.grad(expected, leaves.leaves(), upstream)
            if column.backend == "reference":  # the written-out derivative against autograd's
                y, grads = _written_out(name, sample, upstream)
            else:
                with fill_uninitialized_with_nan():
                    y = leaves.call(RECORDS[name].function)
                    grads = torch.autograd.grad(y, leaves.leaves(), upstream)
            for actual, want in zip((y, *grads), (expected, *wanted), strict=True):
                _equal(actual, want, 5e-13, sample.name)
            for leaf, old in zip(leaves.leaves(), before, strict=True):
                _require(torch.equal(leaf, old), f"{sample.name} changed an input")


def _written_out(name: str, sample: Sample, upstream: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    tensors = list(sample.tensors.values())
    if name == "nmu":
        weight = tensors[0]
        assert weight is not None
        clip = sample.options.get("clip", True)
        used = weight.clamp(0, 1) if clip else weight
        grad_x, grad_weight = reference.nmu_backward(upstream, sample.x, used)
        inside = (weight >= 0) & (weight <= 1) if clip else torch.ones_like(weight, dtype=torch.bool)
        return reference.nmu_forward(sample.x, used), (grad_x, grad_weight.where(inside, 0))
    eps = sample.options.get("eps", torch.finfo(sample.x.dtype).eps)
    straight = sample.options["gate_gradient"] == "straight_through"
    re, im, gate = tensors
    assert re is not None
    y, s = reference.npu_forward(sample.x, re, im, gate, eps, True)
    four = reference.npu_backward(upstream, sample.x, re, im, gate, y, s, eps, straight)
    present = (True, True, im is not None, gate is not None)
    return y, tuple(grad for grad, there in zip(four, present, strict=True) if there)


@check("special values: 0, -0, subnormal, huge, inf, nan")
def _special(column: Column) -> None:
    values = [0.0, -0.0, 1e-45, -1e-40, 1e-38, 1e38, -1e38, 1.0, -1.0, math.inf, -math.inf, math.nan]
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-11)):
        special = torch.tensor(values, dtype=dtype, device=column.device)
        x = torch.stack([special, torch.full_like(special, 0.7), torch.full_like(special, -1.3)], 1)
        re = torch.tensor([[0.5, 0.25, -0.5], [-0.3, 0.5, 0.75]], dtype=dtype, device=column.device)
        im = torch.tensor([[0.125, -0.3, 0.2], [0.2, 0.1, -0.25]], dtype=dtype, device=column.device)
        for gate in (None, torch.full_like(re[0], 0.5), torch.zeros_like(re[0])):
            for row in range(len(values)):  # one by one, so that each is measured by its own size
                actual, expected = (f(x[row : row + 1], re, im, gate) for f in (functional.npu, reference.npu))
                _equal(actual, expected, tolerance, f"{dtype} x = {values[row]}")
        for row in range(len(values)):
            actual, expected = (f(x[row : row + 1], re.clamp(0, 1)) for f in (functional.nmu, reference.nmu))
            _equal(actual, expected, tolerance, f"nmu {dtype} x = {values[row]}")


@check("an empty batch")
def _empty(column: Column) -> None:
    model = _model(column)
    model(torch.empty(0, 3, device=column.device)).sum().backward()
    _require(all(p.grad is not None and not p.grad.any() for p in model.parameters()), "gradients are not zero")


# ---- derivatives ----------------------------------------------------------------------------------------------------


@check("gradcheck, batched and undefined upstream gradients")
def _gradcheck(column: Column) -> None:
    for name in FUSED:
        _require(
            torch.autograd.gradcheck(RECORDS[name].function, _leaves(name, column), check_batched_grad=True, **TIGHT),
            name,
        )


@check("gradgradcheck")
def _gradgradcheck(column: Column) -> None:
    for name in FUSED:
        _require(torch.autograd.gradgradcheck(RECORDS[name].function, _leaves(name, column), **TIGHT), name)


@check("forward-mode AD, and over reverse")
def _forward_mode(column: Column) -> None:
    for name in FUSED:
        f, leaves = RECORDS[name].function, _leaves(name, column, rows=2)
        _require(torch.autograd.gradcheck(f, leaves, check_forward_ad=True, check_backward_ad=False, **TIGHT), name)
        over: dict[str, Any] = {"check_fwd_over_rev": True, "check_rev_over_rev": False, "check_undefined_grad": False}
        _require(torch.autograd.gradgradcheck(f, leaves, **over, **TIGHT), name)


@check("float32 gradients")
def _gradients32(column: Column) -> str:
    worst = 0.0
    for name in FUSED:
        leaves = [leaf.detach().float().requires_grad_() for leaf in _leaves(name, column, rows=9)]
        doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
        grads = torch.autograd.grad(RECORDS[name].function(*leaves).sum(), leaves)
        exact = torch.autograd.grad(RECORDS[name].reference(*doubles).sum(), doubles)
        worst = max(worst, *(_equal(a, e, 1e-5, name) for a, e in zip(grads, exact, strict=True)))
    return f"{worst:.0e}"


# ---- transforms -----------------------------------------------------------------------------------------------------


@check("torch.func: grad, vjp, jvp, jacrev, jacfwd, hessian")
def _func(column: Column) -> None:
    for name in FUSED:
        leaves = [leaf.detach() for leaf in _leaves(name, column)]
        tangents = tuple(torch.ones_like(leaf) for leaf in leaves)
        record, every = RECORDS[name], tuple(range(len(leaves)))

        def results(
            f: Callable[..., Tensor],
            leaves: list[Tensor] = leaves,
            tangents: tuple[Tensor, ...] = tangents,
            every: tuple[int, ...] = every,
        ) -> list[Tensor]:
            def loss(*a: Tensor) -> Tensor:
                return f(*a).square().sum()

            pulled: Any = torch.func.vjp(f, *leaves)
            found = [*torch.func.grad(loss, every)(*leaves), *pulled[1](torch.ones_like(pulled[0]))]
            found += [*torch.func.jvp(f, tuple(leaves), tangents), *torch.func.jacrev(f, every)(*leaves)]
            found += [*torch.func.jacfwd(f, every)(*leaves), torch.func.hessian(loss, 1)(*leaves)]
            return found

        for actual, expected in zip(results(record.function), results(record.reference), strict=True):
            _equal(actual, expected, ROUNDING, name)


@check("torch.func: vmap(grad), per-sample gradients")
def _per_sample(column: Column) -> None:
    for name in FUSED:
        x, weight, *rest = (leaf.detach() for leaf in _leaves(name, column))
        found = []
        for f in (RECORDS[name].function, RECORDS[name].reference):

            def loss(w: Tensor, row: Tensor, f: Any = f, rest: list[Tensor] = rest) -> Tensor:
                return f(row, w, *rest).square().sum()

            found.append(torch.func.vmap(torch.func.grad(loss), (None, 0))(weight, x))
        _equal(found[0], found[1], ROUNDING, name)


class _Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "npu_kernels":
            self.calls[func.name().partition("::")[2]] += 1
        return func(*args, **(kwargs or {}))


@check("torch.func: vmap over stacked modules is one call")
def _stacked(column: Column) -> str | None:
    options: Any = {"dtype": torch.float64, "device": column.device}
    modules: Any = [nn.Sequential(NPU(3, 4, init_im=0.3, **options), NMU(4, 2, **options)) for _ in range(4)]
    state, _ = torch.func.stack_module_state(modules)
    x = _x(column, 5, 3, dtype=torch.float64)

    def loss(s: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(modules[0], s, x).square().sum()

    frozen = {name: value.detach() for name, value in state.items()}
    with _Count() as inside:
        first = torch.func.vmap(torch.func.grad(loss))(frozen)
    with _Count() as outside:
        second = torch.func.grad(lambda s: torch.func.vmap(loss)(s).sum())(frozen)
    with _Count() as plain:
        torch.func.vmap(loss)(state).sum().backward()
    for name, value in state.items():
        one = [dict(m.named_parameters())[name] for m in modules]
        losses = [m(x).square().sum() for m in modules]
        expected = torch.stack([torch.autograd.grad(v, p)[0] for v, p in zip(losses, one, strict=True)])
        for actual in (first[name], second[name], value.grad):
            _equal(actual, expected, ROUNDING, name)
    if column.backend == "reference":
        return "batched formula"
    one_each = dict.fromkeys(ops.NAMES, 1)
    for calls in (inside.calls, outside.calls, plain.calls):
        _require(calls == one_each, f"operator calls {dict(calls)}")
    return None


# ---- compile and export ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    try:
        with torch._dynamo.config.patch(error_on_recompile=True):
            yield
    finally:
        torch._dynamo.reset()


def _compiled(column: Column, backend: str) -> None:
    options: Any = {"dtype": torch.float64, "device": column.device}
    model = nn.Sequential(NPU(3, 4, init_im=0.3, **options), NAU(4, 4, **options), NMU(4, 2, **options))
    with _fresh_compiler():
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
        for rows in (9, 21, 5):
            x = _x(column, rows, 3, dtype=torch.float64)
            for actual, expected in zip(_step(compiled, model, x), _step(model, model, x), strict=True):
                _equal(actual, expected, ROUNDING, f"{rows} rows")


@check("torch.compile, aot_eager: full graph, train step, no recompiles over batch sizes")
def _aot_eager(column: Column) -> None:
    _compiled(column, "aot_eager")


def _compiler(column: Column) -> None:
    if column.device == "cpu" and not (shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")):
        raise Unavailable("no C++ compiler")


@check("torch.compile, inductor: the same")
def _inductor(column: Column) -> None:
    _compiler(column)
    _compiled(column, "inductor")


@check("torch.compile of func.grad and vmap(grad)")
def _compiled_transforms(column: Column) -> None:
    x, weight, *rest = (leaf.detach() for leaf in _leaves("npu", column))

    def loss(w: Tensor, row: Tensor) -> Tensor:
        return functional.npu(row, w, *rest).square().sum()

    for transform in (torch.func.grad(loss), torch.func.vmap(torch.func.grad(loss), (None, 0))):
        with _fresh_compiler():
            actual = torch.compile(transform, fullgraph=True, backend="aot_eager")(weight, x)
        _equal(actual, transform(weight, x), ROUNDING, "")


@check("double backward through a compiled callable raises torch's error")
def _compiled_double(column: Column) -> None:
    layer, x = NPU(3, 2, device=column.device), _x(column, 5, 3).requires_grad_()
    with _fresh_compiler():
        y = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        try:
            slope.sum().backward()
        except RuntimeError as error:
            _require("does not currently support double backward" in str(error), str(error))
        else:
            raise AssertionError("no error: a second derivative may be wrong in silence")


def _exported(column: Column) -> tuple[nn.Module, torch.export.ExportedProgram]:
    model = _model(column)[:3].eval()
    shapes = ({0: torch.export.Dim("batch")},)
    return model, torch.export.export(model, (_x(column, 5, 3),), dynamic_shapes=shapes, strict=False)


@check("torch.export: dynamic batch, save, load, run, decompose")
def _export(column: Column) -> None:
    model, program = _exported(column)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    plain = program.run_decompositions(interop.decompositions())
    _require(not [n for n in plain.graph.nodes if "npu_kernels" in str(n.target)], "operators remain")
    x = _x(column, 11, 3)
    _equal(loaded(x), model(x), 1e-6, "loaded")
    _equal(plain.module()(x), model(x), 1e-5, "decomposed")


@check("ONNX in onnxruntime")
def _onnx(column: Column) -> str:
    try:
        import onnxruntime  # type: ignore[import-not-found, import-untyped, unused-ignore]
        import onnxscript  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: F401
    except ImportError as error:
        raise Unavailable(f"{error.name} is not installed") from None
    model, program = _exported(column)
    plain = program.run_decompositions(interop.decompositions())
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        converted = torch.onnx.export(plain, dynamo=True, verbose=False)
        assert converted is not None
        converted.save(f"{folder}/model.onnx")
        session = onnxruntime.InferenceSession(f"{folder}/model.onnx", providers=["CPUExecutionProvider"])
        x = _x(column, 11, 3)
        (y,) = session.run(None, {session.get_inputs()[0].name: x.cpu().numpy()})
    return f"{_equal(torch.from_numpy(y), model(x), 1e-5, 'onnxruntime'):.0e}"


# ---- training -------------------------------------------------------------------------------------------------------


@check("autocast, float16 and bfloat16: float32 results")
def _autocast(column: Column) -> None:
    model, x = _model(column), _x(column, 9, 3)
    expected = model[0](x)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast(column.device, dtype):
            y = model[0](x)
        _require(y.dtype == torch.float32 and bool(y.isfinite().all()), f"{dtype}: {y.dtype}")
        _equal(y, expected, 1e-6, str(dtype))


@check("float16 and bfloat16 parameters: computed in float32, cast back")
def _half(column: Column) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        model, x = _model(column, dtype), _x(column, 9, 3, dtype=dtype)
        y = model(x)
        y.float().square().mean().backward()
        _require(y.dtype == dtype, f"{dtype}: {y.dtype}")
        _require(all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters()), str(dtype))
        _equal(y.float(), copy.deepcopy(model).float()(x.float()), 30 * torch.finfo(dtype).eps, str(dtype))


@check("GradScaler")
def _scaler(column: Column) -> None:
    model, x = _model(column), _x(column, 9, 3)
    optimizer, scaler = (
        torch.optim.SGD(model.parameters(), 1e-3),
        torch.amp.GradScaler(column.device, init_scale=1024.0),
    )
    before = [p.detach().clone() for p in model.parameters()]
    with torch.autocast(column.device, torch.float16):
        loss = model(x).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    _require(all(bool(p.isfinite().all()) for p in model.parameters()), "not finite")
    _require(any(not torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True)), "no step")


@check("torch.utils.checkpoint, reentrant and not")
def _checkpoint(column: Column) -> None:
    model, x = _model(column), _x(column, 9, 3).requires_grad_()
    expected = _step(model, model, x)[2:]
    for reentrant in (False, True):
        model.zero_grad()
        y: Any = checkpoint(model, x, use_reentrant=reentrant)
        y.square().mean().backward()
        for parameter, want in zip(model.parameters(), expected, strict=True):
            _equal(parameter.grad, want, 1e-6, f"reentrant {reentrant}")  # type: ignore[arg-type]


@check("deepcopy, pickle, state_dict, torch.load(weights_only=True), meta, skip_init")
def _copies(column: Column) -> None:
    model, x = _model(column), _x(column, 9, 3)
    y, file = model(x), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    with torch.device("meta"):
        empty = _model(Column(column.backend, "meta"))
    empty.load_state_dict(torch.load(file, weights_only=True), assign=True)
    for copied in (empty, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        _require(torch.equal(copied(x), y), "a copy computes something else")
    nn.utils.skip_init(NPU, 3, 2, device=column.device).reset_parameters()


@check("parametrize, prune, module hooks")
def _services(column: Column) -> None:
    class Double(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    x, seen = _x(column, 9, 3), []
    layer = NPU(3, 2, device=column.device)
    expected = functional.npu(x, 2 * layer.weight_re, layer.weight_im, layer.gate)
    parametrize.register_parametrization(layer, "weight_re", Double())
    layer.register_forward_hook(lambda *_: seen.append(1))
    _equal(layer(x), expected, 1e-6, "parametrize")
    layer(x).sum().backward()
    _require(len(seen) == 2, "hooks")
    layer = NPU(3, 2, device=column.device)
    prune.l1_unstructured(layer, "weight_re", amount=2)
    layer(x).sum().backward()
    masked: Any = layer.weight_re_orig
    _require(int((masked.grad == 0).sum()) == 2, "prune")


@check("swap and to_reference")
def _interop(column: Column) -> None:
    model, x = _model(column), _x(column, 9, 3)
    y = model(x)
    for layout in ("reference", "julia", "pytorch"):
        interop.to_reference(model, layout)
        _equal(model(x), y, 1e-5, layout)
        interop.swap(model)
        _equal(model(x), y, 1e-6, layout)


@check("anomaly mode and the tracer name the layer")
def _anomaly(column: Column) -> None:
    x = torch.full((2, 3), math.nan, device=column.device, requires_grad=True)
    layer = NPU(3, 2, device=column.device)
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("ignore")
        try:
            layer(x).sum().backward()
        except RuntimeError as error:
            _require(column.backend == "reference" or "NPUFunctionBackward" in str(error), str(error))
        else:
            raise AssertionError("no error")
    with trace.non_finite(layer, "record") as found:
        layer(x)
    _require((found[0].kind, found[0].unit, found[0].row) == ("NPU", 0, (0,)), str(found))


# ---- threads and processes ------------------------------------------------------------------------------------------


@check("the same bits at 1, 2 and 4 threads, from 8 Python threads, and every time")
def _threads(column: Column) -> str | None:
    sample = RECORDS["npu"].sample(1500, 33, 35, dtype=torch.float32, device=column.device)

    def everything(_: int = 0) -> list[Tensor]:
        leaves = sample.requires_grad()
        y = leaves.call(functional.npu)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), leaves.leaves())]

    def same(actual: list[Tensor], expected: list[Tensor]) -> None:
        for a, e in zip(actual, expected, strict=True):
            if column.backend == "reference":  # a matrix library may split its sums by the number of threads
                _equal(a, e, 1e-4, "threads")
            else:
                _require(torch.equal(a, e), "other bits")

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = everything()
        for number in (2, 4, 1):
            torch.set_num_threads(number)
            same(everything(), expected)
        with ThreadPoolExecutor(8) as pool:
            for found in pool.map(everything, range(16)):
                same(found, expected)
    finally:
        torch.set_num_threads(threads)
    return "to rounding" if column.backend == "reference" else None


def _distributed(rank: int, column: Column) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    import npu_kernels.sharding  # noqa: F401

    x, single = _x(column, 8, 3, dtype=torch.float64), _model(column, torch.float64)
    single(x).square().mean().backward()
    mesh, own = init_device_mesh("cpu", (2,)), x.chunk(2)[rank]
    sharded: Any = _model(column, torch.float64)
    fully_shard(sharded, mesh=mesh)
    for model in (nn.parallel.DistributedDataParallel(_model(column, torch.float64)), sharded):
        model(own).square().mean().backward()
        for parameter, one in zip(model.parameters(), single.parameters(), strict=True):
            grad: Any = parameter.grad
            assert one.grad is not None
            _equal(grad.full_tensor() if model is sharded else grad, one.grad, 1e-12, type(model).__name__)
    if column.backend == "reference":
        return  # plain torch, which has rules of its own
    leaves = RECORDS["npu"].sample(4, 4, 4).requires_grad().leaves()
    y = functional.npu(*leaves)
    wanted = [y, *torch.autograd.grad(y.square().sum(), leaves)]
    for of_x, of_weight in ((Replicate(), Replicate()), (Shard(0), Replicate()), (Replicate(), Shard(0))):
        placed: list[Any] = [of_x, of_weight, of_weight, Replicate()]
        spread = [
            distribute_tensor(leaf.detach(), mesh, [placement]).requires_grad_()
            for leaf, placement in zip(leaves, placed, strict=True)
        ]
        found: Any = functional.npu(*spread)
        grads: Any = torch.autograd.grad(found.square().sum(), spread)
        for actual, want in zip((found, *grads), wanted, strict=True):
            _equal(actual.full_tensor(), want, 1e-12, f"DTensor {of_x} {of_weight}")


def _rank(rank: int, port: int, where: list[Column], folder: str) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=limit)
    failures = {}
    for column in where:
        try:
            with column.use():
                _distributed(rank, column)
        except Exception as error:
            failures[column.name] = str(error).strip()
    Path(folder, f"{rank}.json").write_text(json.dumps(failures))
    dist.barrier()
    # torch aborts now and then when gloo's threads end with the process, with plain DTensors too; all is done here.
    os._exit(0)


@functools.cache
def _failures_of_two_processes() -> dict[str, str]:
    """Column -> failure; one start of two processes for all columns."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    where = [column for column in columns() if column.device == "cpu"]
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (port, where, folder), nprocs=2)
        for rank in range(2):
            failures.update(json.loads(Path(folder, f"{rank}.json").read_text()))
    return failures


@check("two processes: DistributedDataParallel, FSDP2, DTensor")
def _processes(column: Column) -> None:
    import torch.distributed as dist

    if column.device != "cpu":
        raise Unavailable("needs two devices")
    if not (dist.is_available() and dist.is_gloo_available()):
        raise Unavailable("this torch has no gloo")
    failures = _failures_of_two_processes()
    _require(column.name not in failures, failures.get(column.name, ""))


# ---- the run --------------------------------------------------------------------------------------------------------


def columns() -> list[Column]:
    """What can run here."""
    found = [Column("reference")]
    if cpu.available()[0]:
        found += [Column("cpu", isa=isa) for isa in cpu.supported_isas()]
    if torch.cuda.is_available():
        found.append(Column("reference", "cuda"))
        if dispatch.reasons("cuda")["triton"][0]:
            found.append(Column("triton", "cuda"))
    return found


def run(title: str, column: Column) -> Result:
    """One cell."""
    start = time.perf_counter()
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings(), column.use():
            warnings.simplefilter("ignore")
            detail = CHECKS[title](column) or "ok"
            status = "ok"
    except Unavailable as reason:
        status, detail = "n/a", str(reason)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        status, detail = "fail", f"{type(error).__name__}: {lines[-1][:300]}"
    return Result(title, column.name, status, detail, round(time.perf_counter() - start, 2))


def certify(
    titles: list[str], where: list[Column], progress: Callable[[Result], None] = lambda result: None
) -> list[Result]:
    """The matrix, column by column."""
    results = []
    for column in where:
        for title in titles:
            results.append(run(title, column))
            progress(results[-1])
    return results


def versions() -> dict[str, str]:
    """What the matrix was measured with."""
    facts = env.environment()
    wanted = ("npu_kernels", "python", "torch", "triton", "numpy", "processor", "cores", "cuda", "cpu instruction set")
    found = {name: facts[name] for name in wanted}
    return {**found, "mpmath": env._version("mpmath"), "onnxruntime": env._version("onnxruntime")}


NOTES = """
## Notes

- **When not to compile.** A fused layer by itself: `torch.compile` leaves the operator as it is and adds the guards and
  the wrapper of its call, which makes a small layer slower (about twice, at 100 rows of 6 features) and changes nothing
  for a large one. Compile a model that has other layers to fuse around it.
- **Double backward** through a compiled callable is not supported by torch itself and raises its error (the row above).
  Compile the computation of the gradient instead: `torch.compile(torch.func.grad(...))`.
- **vmap over stacked modules** is one call of the fused operators, with the gradient inside, outside or by plain
  autograd. torch makes a class for each such call, about half a millisecond; `num_models` is the same without. Other
  `torch.func` transforms, and per-sample gradients, compute by the eager formulas.
- **Exported programs** hold the fused operators and need `import npu_kernels` where they run; so does an AOTInductor
  package. `program.run_decompositions(npu_kernels.interop.decompositions())` leaves plain aten, for ONNX and for C++.
- **DTensor** knows the operators after `import npu_kernels.sharding`. Rows, outputs and models may be sharded, inputs
  never: a tensor that comes sharded over them is gathered.
- **fork** after the kernels have run on several threads: call `torch.set_num_threads(1)` in the child first, as for any
  torch operator.
- **Half precision and autocast.** Under autocast everything is computed in float32 and the result is float32. Without
  it, float16 and bfloat16 tensors are computed in float32 and the result is cast back.
"""


def markdown(results: list[Result], facts: dict[str, str]) -> str:
    """The report as one table."""
    names = list(dict.fromkeys(result.column for result in results))
    cells = {(result.check, result.column): result for result in results}
    shown = {"ok": "{}", "n/a": "n/a: {}", "fail": "**FAIL** {}"}
    lines = [
        "# Compatibility",
        "",
        "Neural Power Unit, a layer: measured by `python -m npu_kernels.certify`, which measures it on your machine.",
        "A number is an error; an ulp is one of exp(P), the size of the NPU's result before its cosine.",
        "",
        f"| | {' | '.join(names)} |",
        "| --- |" + " --- |" * len(names),
    ]
    for title in dict.fromkeys(result.check for result in results):
        row = (cells[title, name] for name in names)
        texts = (shown[cell.status].format(cell.detail.replace("|", "\\|")) for cell in row)
        lines.append(f"| {title} | {' | '.join(texts)} |")
    lines += ["", "Measured with " + ", ".join(f"{name} {value}" for name, value in facts.items()) + "."]
    return "\n".join(lines) + "\n" + NOTES


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m npu_kernels.certify", description="Neural Power Unit, a layer: does all of it work here?"
    )
    parser.add_argument("--json", type=Path, default=Path("npu_kernels_certificate.json"), help="where to write JSON")
    parser.add_argument("--markdown", type=Path, default=Path("npu_kernels_certificate.md"), help="and Markdown")
    parser.add_argument("--only", default="", help="checks whose title has this in it")
    parser.add_argument("--column", default="", help="columns whose name has this in it")
    options = parser.parse_args(arguments)
    titles = [title for title in CHECKS if options.only in title]
    where = [column for column in columns() if options.column in column.name]
    if not titles or not where:
        parser.error(f"nothing to run: {len(titles)} checks, columns {[column.name for column in columns()]}")

    def show(result: Result) -> None:
        print(
            f"{result.status:4} {result.seconds:6.1f} s  {result.column}: {result.check}: {result.detail}", flush=True
        )

    results, facts = certify(titles, where, show), versions()
    failed = sum(result.status == "fail" for result in results)
    report = {"passed": not failed, "versions": facts, "results": [asdict(result) for result in results]}
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    options.markdown.write_text(markdown(results, facts))
    print(f"{len(results)} cells, {failed} failed; {options.json} and {options.markdown} written")
    return 1 if failed else 0


if __name__ == "__main__":
    # Under its own name, so that children that start anew find what they are to run.
    from npu_kernels import certify as module

    sys.exit(module.main())
