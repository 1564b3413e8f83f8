"""Exported programs in files, in onnxruntime and as compiled packages."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from npu_kernels import NAC, NALU, NAU, NMRU, NMU, NPU, NaiveNPU, RealNPU, iNALU, interop, ode
from tests.conftest import compiles, needs_library
from tests.support.building import needs_compiler
from tests.support.samples import normwise_error

# torch's own warnings about itself
pytestmark = [
    needs_library,
    compiles,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
]


def _model() -> nn.Module:
    return nn.Sequential(NPU(3, 6, init_im=0.3), NAU(6, 5), NMU(5, 4), iNALU(4, 2)).eval()


def _exported(model: nn.Module, strict: bool = False) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch")
    return torch.export.export(
        model, (torch.randn(5, 3),), dynamic_shapes=({0: batch},), strict=strict
    )


def _operators(program: torch.export.ExportedProgram) -> list[str]:
    """Our operators; a strict export has them in submodules."""
    graphs = [
        module
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
    ]
    targets = [str(node.target) for graph in graphs for node in graph.graph.nodes]
    return [target for target in targets if target.startswith("npu_kernels.")]


@pytest.mark.parametrize("strict", [False, True])
def test_save_load_run_decompose(strict: bool) -> None:
    """A dynamic batch; the operators in the program, none after decomposition."""
    model = _model()
    program = _exported(model, strict)
    assert _operators(program).count("npu_kernels.npu_forward.default") == 1
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    plain = program.run_decompositions(interop.decompositions())
    assert not _operators(plain)
    for rows in (2, 11):
        x = torch.randn(rows, 3)
        # Not the same bits: a small NAU has its own kernel here, and in the program torch's
        # product. The iNALU divides by small numbers: over seeds the error is 2e-6 in the mean and
        # up to 4e-5, of the formula as of the kernels.
        assert normwise_error(loaded(x), model(x)) < 1e-4
        assert normwise_error(plain.module()(x), model(x)) < 1e-4


@pytest.mark.parametrize("source", ["module", "program"])
def test_onnx(source: str, tmp_path: Path) -> None:
    """The formulas in onnxruntime, at other batch sizes than they were exported with."""
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    onnxruntime: Any = pytest.importorskip("onnxruntime")
    model = _model()
    if source == "module":
        batch = ({0: torch.export.Dim("batch")},)
        settings = {"dynamo": True, "verbose": False, "dynamic_shapes": batch}
        program = torch.onnx.export(model, (torch.randn(5, 3),), **settings)
    else:
        plain = _exported(model).run_decompositions(interop.decompositions())
        program = torch.onnx.export(plain, dynamo=True, verbose=False)
    assert program is not None
    program.save(str(tmp_path / "model.onnx"))
    session = onnxruntime.InferenceSession(
        str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    for rows in (2, 11):
        x = torch.randn(rows, 3)
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert normwise_error(torch.from_numpy(y), model(x)) < 1e-5


class _Each(nn.Module):
    """The outputs of several layers for the same x."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x) for layer in self.layers]


@pytest.mark.filterwarnings("ignore:Exporting a model while it is in training mode")
@pytest.mark.parametrize(("dtype", "models"), [(torch.float64, 2), (torch.float32, None)])
def test_onnx_keeps_eps(dtype: torch.dtype, models: int | None) -> None:
    """Inputs where eps decides; with torch's optimizer, without, and the older exporter."""
    pytest.importorskip("onnxscript")
    onnxruntime: Any = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    options: dict[str, Any] = {"dtype": dtype, "num_models": models}
    layers = [unit(2, 1, eps=1e-9, **options) for unit in (NPU, iNALU, NMRU)]
    if dtype is torch.float64:
        layers[:0] = [unit(2, 1, **options) for unit in (NPU, RealNPU, NaiveNPU, NALU)]
    each = _Each(layers)
    for weight in each.parameters():
        weight.data.mul_(2)
    x = torch.tensor([[0.0, 2.0], [1.0, 2.0], [1e-12, 3.0], [-1e-12, 0.0]], dtype=dtype)
    files = [
        torch.onnx.export(
            each, (x,), verbose=False, optimize=optimize
        ).model_proto.SerializeToString()  # type: ignore[union-attr]
        for optimize in (True, False)
    ]
    # without the NMRU, whose eps is for training: this exporter records evaluation
    buffer = io.BytesIO()
    torch.onnx.export(_Each(layers[:-1]), (x,), buffer, dynamo=False)
    for file in (*files, buffer.getvalue()):
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        results = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert len(results) >= len(layers) - 1
        error = 1e-4 if dtype is torch.float32 else 1e-10
        for y, layer in zip(results, layers, strict=False):
            want = layer(x).detach()
            torch.testing.assert_close(torch.from_numpy(y), want, rtol=error, atol=error)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("options", [{}, {"gate_gradient": "straight_through"}])
def test_gradients_of_an_exported_program(options: dict[str, Any], strict: bool) -> None:
    """An optimizer trains a program's module, whether it was exported with gradients or without."""
    torch.manual_seed(0)
    layers = [NPU(3, 4, **options), NMU(4, 4), NALU(4, 4), NAU(4, 3), iNALU(3, 3), NAC(3, 3)]
    model = nn.Sequential(
        nn.Linear(3, 3), *layers, NMRU(3, 3), RealNPU(3, 3), NaiveNPU(3, 2)
    ).double()
    model[1].gate.data[0] = 1.2  # where the two gradients of a gate differ
    x = torch.rand(5, 3, dtype=torch.float64) + 0.5
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    for grad_mode in (True, False):
        with torch.set_grad_enabled(grad_mode):
            program = torch.export.export(model, (x,), strict=strict).module()
        parameters = dict(program.named_parameters())
        grads = torch.autograd.grad(program(x).square().sum(), list(parameters.values()))
        of_program = dict(zip(parameters, grads, strict=True))
        for (name, _), want in zip(model.named_parameters(), expected, strict=True):
            assert normwise_error(of_program[name], want) < 1e-9, name


def test_second_derivatives_of_an_exported_program() -> None:
    model, x = NPU(3, 2).double(), torch.rand(4, 3, dtype=torch.float64).add(0.5).requires_grad_()
    program = torch.export.export(model, (x.detach(),)).module()
    gradients = [
        torch.autograd.grad(call(x).sum(), x, create_graph=True)[0] for call in (model, program)
    ]
    curvatures = [torch.autograd.grad(gradient.square().sum(), x)[0] for gradient in gradients]
    assert normwise_error(curvatures[1], curvatures[0]) < 1e-10


@pytest.mark.parametrize("options", [{}, {"gate_gradient": "straight_through"}])
def test_gradients_of_an_exported_rollout(options: dict[str, Any]) -> None:
    class Rollout(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential(NPU(2, 3, **options), NAU(3, 2)).double()

        def forward(self, u0: torch.Tensor) -> torch.Tensor:
            path = ode.rollout(self.model, u0, steps=3, dt=0.1, nonfinite="keep")
            assert isinstance(path, torch.Tensor)
            return path

    torch.manual_seed(0)
    rollout, u0 = Rollout(), torch.rand(4, 2, dtype=torch.float64) + 0.5
    rollout.model[0].gate.data[0] = 1.2
    expected = torch.autograd.grad(rollout(u0).square().sum(), list(rollout.parameters()))
    program = torch.export.export(rollout, (u0,)).module()
    program(u0).square().sum().backward()
    of_program = dict(program.named_parameters())
    for (name, _), want in zip(rollout.named_parameters(), expected, strict=True):
        assert normwise_error(of_program[name].grad, want) < 1e-10, name


def test_bounds_of_exported_programs_are_floats() -> None:
    """The ONNX exporter of torch 2.11 fails at a clamp of floats between two integers."""
    bounds = 0
    for unit in (NPU, RealNPU, NaiveNPU, NAU, NMU, NMRU, NAC, NALU, iNALU):
        program = torch.export.export(unit(3, 3), (torch.randn(5, 3),))
        for node in program.run_decompositions(interop.decompositions()).graph.nodes:
            if node.target is torch.ops.aten.clamp.default and None not in node.args[1:]:
                assert all(type(bound) is float for bound in node.args[1:]), unit
                bounds += 1
    assert bounds >= 5


def test_executorch() -> None:
    """ExecuTorch's runtime gives the layers' values."""
    exir: Any = pytest.importorskip("executorch.exir", reason="ExecuTorch is not installed")
    runtime: Any = pytest.importorskip("executorch.runtime")
    model, x = _model(), torch.randn(5, 3)
    plain = torch.export.export(model, (x,)).run_decompositions(interop.decompositions())
    program = exir.to_edge(plain).to_executorch()
    method = runtime.Runtime.get().load_program(program.buffer).load_method("forward")
    assert normwise_error(method.execute([x])[0], model(x)) < 1e-4


@needs_compiler
def test_aot_inductor_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled ahead of time around the fused operators, loaded from its file, any batch size."""
    model = nn.Sequential(NPU(3, 6, init_im=0.3), NAU(6, 2)).eval()
    # one package needs them once
    monkeypatch.setattr(torch._inductor.config.aot_inductor, "precompile_headers", False)
    path = torch._inductor.aoti_compile_and_package(
        _exported(model), package_path=str(tmp_path / "model.pt2")
    )
    runner = torch._inductor.aoti_load_package(path)
    for rows in (2, 11):
        x = torch.randn(rows, 3)
        with torch.no_grad():
            assert normwise_error(runner(x), model(x)) < 1e-6
