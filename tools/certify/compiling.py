"""torch.compile, torch.export, torch.jit.trace, ONNX and compiled packages."""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._triton import has_triton

from npu_kernels import NAU, NMU, NPU, functional, interop
from tools.certify.matrix import (
    ROUNDING,
    Column,
    Unavailable,
    check,
    equal,
    inputs,
    leaves_of,
    model_of,
    require,
    step,
)


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
    layers = NPU(3, 4, init_im=0.3, **options), NAU(4, 4, **options), NMU(4, 2, **options)
    model = nn.Sequential(*layers)
    with _fresh_compiler():
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
        for rows in (9, 21, 5):
            x = inputs(column, rows, 3, dtype=torch.float64)
            pairs = zip(step(compiled, model, x), step(model, model, x), strict=True)
            for actual, expected in pairs:
                equal(actual, expected, ROUNDING, f"{rows} rows")


@check("torch.compile, aot_eager: full graph, train step, no recompiles over batch sizes")
def _aot_eager(column: Column) -> None:
    _compiled(column, "aot_eager")


def _compiler(column: Column) -> None:
    if column.device == "cpu" and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        raise Unavailable("no C++ compiler")
    if column.device == "cuda" and not has_triton():
        raise Unavailable("inductor needs triton")


@check("torch.compile, inductor: the same")
def _inductor(column: Column) -> None:
    _compiler(column)
    _compiled(column, "inductor")


@check("torch.compile of func.grad and vmap(grad)")
def _compiled_transforms(column: Column) -> None:
    x, weight, *rest = (leaf.detach() for leaf in leaves_of("npu", column))

    def loss(w: Tensor, row: Tensor) -> Tensor:
        return functional.npu(row, w, *rest).square().sum()

    for transform in (torch.func.grad(loss), torch.func.vmap(torch.func.grad(loss), (None, 0))):
        with _fresh_compiler():
            actual = torch.compile(transform, fullgraph=True, backend="aot_eager")(weight, x)
        equal(actual, transform(weight, x), ROUNDING, "")


@check("double backward through a compiled callable raises torch's error")
def _compiled_double(column: Column) -> None:
    layer, x = NPU(3, 2, device=column.device), inputs(column, 5, 3).requires_grad_()
    with _fresh_compiler():
        y = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        try:
            gradient.sum().backward()
        except RuntimeError as error:
            require("does not currently support double backward" in str(error), str(error))
        else:
            raise AssertionError("no error: a second derivative may be silently wrong")


def _exported(column: Column, model: nn.Module) -> torch.export.ExportedProgram:
    x, shapes = inputs(column, 5, 3), ({0: torch.export.Dim("batch")},)
    return torch.export.export(model, (x,), dynamic_shapes=shapes, strict=False)


@check("torch.export: dynamic batch, save, load, run, decompose")
def _export(column: Column) -> None:
    model = model_of(column)[:3].eval()
    program, file = _exported(column, model), io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    plain = program.run_decompositions(interop.decompositions())
    targets = [str(node.target) for node in plain.graph.nodes]
    require(not any("npu_kernels" in target for target in targets), "operators remain")
    x = inputs(column, 11, 3)
    equal(loaded(x), model(x), 1e-6, "loaded")
    equal(plain.module()(x), model(x), 1e-5, "decomposed")


@check("ONNX in onnxruntime")
def _onnx(column: Column) -> str:
    try:
        import onnxruntime  # type: ignore[import-not-found, import-untyped, unused-ignore]
        import onnxscript  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: F401
    except ImportError as error:
        raise Unavailable(f"{error.name} is not installed") from None
    errors = []
    for dtype, bound in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        model = model_of(column, dtype)[:3].eval()
        x = inputs(column, 11, 3, dtype=dtype)
        x[0], x[1] = 0, 1e-12  # where eps decides
        program = torch.export.export(model, (x,))
        plain = program.run_decompositions(interop.decompositions())
        with contextlib.redirect_stdout(io.StringIO()):
            converted = torch.onnx.export(plain, dynamo=True, verbose=False)
        assert converted is not None
        file = converted.model_proto.SerializeToString()
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        (y,) = session.run(None, {session.get_inputs()[0].name: x.cpu().numpy()})
        for actual, want in zip(torch.from_numpy(y), model(x), strict=True):
            errors.append(equal(actual, want, bound, f"{dtype} in onnxruntime"))
    return f"{max(errors[:11]):.0e}"


@check("torch.jit.trace: save, load, other batch sizes, gradients, by the eager formulas")
def _jit_trace(column: Column) -> None:
    model = model_of(column, torch.float64)
    traced = torch.jit.trace(model, (inputs(column, 5, 3, dtype=torch.float64),))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    loaded = torch.jit.load(file)
    require("npu_kernels::" not in str(loaded.inlined_graph), "operators remain")
    x = inputs(column, 11, 3, dtype=torch.float64)
    expected = step(model, model, x)
    for title, other in {"traced": traced, "loaded": loaded}.items():
        for actual, want in zip(step(other, other, x), expected, strict=True):
            equal(actual, want, ROUNDING, title)


@check("AOTInductor: package, load, run")
def _package(column: Column) -> None:
    _compiler(column)
    model = NPU(3, 6, init_im=0.3, device=column.device).eval()
    program = _exported(column, model)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/model.pt2")
        loaded = torch._inductor.aoti_load_package(path)
        for rows in (2, 11):
            x = inputs(column, rows, 3)
            equal(loaded(x), model(x), 1e-6, f"{rows} rows")
