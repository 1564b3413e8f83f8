"""What only a GPU can show: graphs, streams, devices, huge tensors, real launches."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

import npu_kernels
from npu_kernels import reference, training
from tests.support.compare import assert_equal, assert_near
from tests.support.kernels import ALL, backward, forward, outputs
from tests.support.samples import RECORDS, Sample, normwise_error

pytestmark = pytest.mark.gpu
LAYERS = ("npu", "nmu", "nmru", "nalu", "inalu")
ELEMENTS = 2**31
UNITS = ("NPU", "RealNPU", "NaiveNPU", "NMU", "NMRU", "NALU", "iNALU")


def _needs_memory(gigabytes: float) -> None:
    gc.collect()
    torch.cuda.empty_cache()  # what earlier tests have left
    free, _ = torch.cuda.mem_get_info()
    if free < gigabytes * 2**30:
        pytest.skip(f"needs {gigabytes} GiB of free GPU memory, there are {free / 2**30:.1f}")


@pytest.mark.parametrize("num_models", [None, 8])
@pytest.mark.parametrize("sizes", [(100, 6, 2), (256, 64, 48), (160, 144, 112)])
@pytest.mark.parametrize("layer", UNITS)
def test_training_step_in_a_graph(
    layer: str, gpu: str, sizes: tuple[int, int, int], num_models: int | None
) -> None:
    """A captured step (forward, backward, optimizer) has the bits of the uncaptured one."""
    rows, in_features, out_features = sizes
    lead = [] if num_models is None else [num_models]
    # an NMU's product of many smaller ones vanishes
    x = torch.rand(*lead, rows, in_features, device=gpu) + 0.5
    x[..., 0] -= 1
    target = torch.rand(*lead, rows, out_features, device=gpu)

    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        module = getattr(npu_kernels, layer)(
            in_features, out_features, num_models=num_models, device=gpu
        )
        # Capturable: the number of steps is a tensor on the device, which a replayed graph can
        # count.
        return module, torch.optim.Adam(module.parameters(), lr=1e-3, capturable=True)

    def step(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = (module(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    plain, captured = build(), build()
    begin = [parameter.detach().clone() for parameter in plain[0].parameters()]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    # compiles the kernels and allocates gradients and the optimizer's state
    with torch.cuda.stream(side):
        for _ in range(3):
            step(*captured)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured_loss = step(*captured)  # records only
    for _ in range(5):
        graph.replay()
    for _ in range(3 + 5):
        loss = step(*plain)
    torch.cuda.synchronize()
    assert torch.isfinite(loss)
    assert torch.equal(loss, captured_loss)
    for ordinary, replayed, first in zip(
        plain[0].parameters(), captured[0].parameters(), begin, strict=True
    ):
        assert torch.equal(ordinary, replayed)
        assert not torch.equal(ordinary, first)


@pytest.mark.parametrize("features", [48, 176, 272])
def test_steps_of_a_training_are_captured(features: int, gpu: str) -> None:
    """Whether a graph takes the kernels of ordinary calls or, as for 176 features, others."""
    x = torch.rand(96, features, device=gpu) + 0.5
    result = training.run(npu_kernels.NPU(features, features, device=gpu), x, x, steps=60)
    assert result.captured
    assert torch.isfinite(result.losses).all()


@pytest.mark.parametrize("sizes", [(100, 6, 2), (100, 100, 100)])
@pytest.mark.parametrize("layer", UNITS)
def test_repeated_calls(layer: str, sizes: tuple[int, int, int], gpu: str) -> None:
    """Launches repeat from the third call on: same bits, on another stream, from any address."""
    rows, in_features, out_features = sizes
    module = getattr(npu_kernels, layer)(in_features, out_features, device=gpu)
    memory = torch.rand(rows * in_features + 1, device=gpu) + 0.5
    values, shifted = (
        memory[:-1].view(rows, in_features).clone(),
        memory[1:].view(rows, in_features),
    )
    shifted.copy_(values)

    def step(x: Tensor) -> list[Tensor]:
        y = module(x)
        return [y.detach(), *torch.autograd.grad(y.sum(), list(module.parameters()))]

    calls = [step(values) for _ in range(4)]
    calls.append(step(values.t().contiguous().t()))
    stream, late = torch.cuda.Stream(), torch.zeros_like(values)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)
        late.copy_(values)
        calls.append(step(late))
    stream.synchronize()
    for call in calls[1:]:
        assert_equal(call, calls[0])
    # other instructions, which may add in another order
    for actual, first in zip(step(shifted), calls[0], strict=True):
        assert normwise_error(actual, first) < 1e-5


@pytest.mark.parametrize("layer", UNITS)
def test_vmap_over_stacked_modules(layer: str, gpu: str) -> None:
    """Outputs and gradients are those of the modules one by one."""
    modules = [getattr(npu_kernels, layer)(6, 3, device=gpu) for _ in range(4)]
    state, _ = torch.func.stack_module_state(modules)
    x = torch.rand(20, 6, device=gpu) - 0.5
    y = torch.func.vmap(lambda s: torch.func.functional_call(modules[0], s, x))(state)
    grads = torch.autograd.grad(y.sum(), list(state.values()))
    singles = [module(x) for module in modules]
    expected = [
        torch.autograd.grad(output.sum(), list(module.parameters()))
        for output, module in zip(singles, modules, strict=True)
    ]
    assert normwise_error(y, torch.stack(singles)) < 1e-6
    for grad, single_grads in zip(grads, zip(*expected, strict=True), strict=True):
        assert normwise_error(grad, torch.stack(single_grads)) < 1e-5


@pytest.mark.parametrize("name", LAYERS)
def test_other_stream(name: str, gpu: str, kernels: Any) -> None:
    """Kernels run on the current stream: their input is made there, late."""
    sample = RECORDS[name].sample(64, 6, 5, num_models=2, device=gpu)
    grad_y = torch.randn_like(forward(sample, reference)[0])
    expected = outputs(sample, kernels, grad_y)
    copies = sample.map(torch.zeros_like)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)
        for copy, source in zip(copies.leaves(), sample.leaves(), strict=True):
            copy.copy_(source)
        actual = [*forward(copies, kernels), *backward(copies, kernels, grad_y, ALL)]
    stream.synchronize()
    assert_equal(actual, expected)


def test_other_device(gpu: str, kernels: Any) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two devices, there is {torch.cuda.device_count()}")
    for name in LAYERS:
        sample = RECORDS[name].sample(64, 6, 5, device="cuda:0")
        other = sample.map(lambda t: t.to("cuda:1"))
        grad_y = torch.randn_like(forward(sample, reference)[0])
        actual = outputs(other, kernels, grad_y.to("cuda:1"))
        assert {t.device.index for t in actual} == {1}
        for result, moved in zip(actual, outputs(sample, kernels, grad_y), strict=True):
            assert torch.equal(result.to("cuda:0"), moved)


@pytest.mark.parametrize(("in_features", "out_features"), [(2, 9), (17, 3), (3, 17)])
def test_more_than_2_31_elements(
    in_features: int, out_features: int, gpu: str, kernels: Any
) -> None:
    """Offsets beyond 32 bits: the last rows of outputs and grad_x are right, and the sums."""
    _needs_memory(40)  # y, s and grad_y take 8 GiB each, x and its gradient up to 8
    rows = ELEMENTS // max(in_features, out_features) + 1000
    x = torch.rand(rows, in_features, device=gpu).sub_(0.5)
    weight_re, weight_im = torch.rand(2, out_features, in_features, device=gpu)
    gate = torch.rand(in_features, device=gpu)
    y, s = kernels.npu_forward(x, weight_re, weight_im, gate, 1e-7, True)
    tail = slice(rows - 500, rows)
    want = reference.npu_forward(x[tail], weight_re, weight_im, gate, 1e-7, True)
    assert max(normwise_error(y[tail], want[0]), normwise_error(s[tail], want[1])) < 1e-5
    grad_y = torch.zeros_like(y)
    grad_y[tail] = 1  # only these rows count, so the sums are those of the tail
    actuals = kernels.npu_backward(grad_y, x, weight_re, weight_im, gate, y, s, 1e-7, False, 15)
    tail_expected = reference.npu_backward(
        grad_y[tail], x[tail], weight_re, weight_im, gate, *want, 1e-7, False, 15
    )
    assert normwise_error(actuals[0][tail], tail_expected[0]) < 1e-4
    assert_near(actuals[1:], tail_expected[1:], 1e-3)


@pytest.mark.parametrize("name", ["nmu", "nalu", "inalu"])
def test_more_than_2_31_elements_of_siblings(name: str, gpu: str, kernels: Any) -> None:
    """The same for the other layers: the last rows against a call with these rows alone."""
    _needs_memory(60)  # y, grad_y and what is saved take 8 GiB each, x and its gradient 2
    rows, tail = ELEMENTS // 9 + 1000, 500
    sample = RECORDS[name].sample(tail, 2, 9, dtype=torch.float32, device=gpu)
    grad_y = torch.randn_like(forward(sample, reference)[0])
    want = outputs(sample, kernels, grad_y)
    x = torch.ones(rows, 2, device=gpu)
    x[-tail:] = sample.x
    large = Sample(name, x, sample.tensors, sample.options)
    results = list(forward(large, kernels))
    actuals = [result[-tail:].clone() for result in results]
    results[0] = None  # y: no backward of these reads it, and memory is short
    large_grad = grad_y.new_zeros(rows, 9)  # only the last rows count, so the sums are theirs
    large_grad[-tail:] = grad_y
    grad_x, *grads = backward(large, kernels, large_grad, ALL, results=results)
    for actual, expected in zip([*actuals, grad_x[-tail:], *grads], want, strict=True):
        assert normwise_error(actual, expected) < 1e-5


@pytest.mark.parametrize("name", LAYERS)
def test_many_models(name: str, gpu: str, kernels: Any) -> None:
    """More models than a grid has rows in its second dimension."""
    sample = RECORDS[name].sample(3, 4, 2, num_models=70000, dtype=torch.float32, device=gpu)
    grad_y = torch.ones_like(forward(sample, reference)[0])
    for actual, expected in zip(
        outputs(sample, kernels, grad_y), outputs(sample, reference, grad_y), strict=True
    ):
        assert normwise_error(actual[-100:], expected[-100:]) < 1e-3


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_a_ragged_last_batch(precision: str, gpu: str, kernels: Any) -> None:
    """Rows of a smaller batch have the bits of a larger one, and nothing is compiled for it."""
    from npu_kernels._triton import npu, reduction

    torch.set_float32_matmul_precision(precision)
    sample = RECORDS["npu"].sample(1024, 256, 256, dtype=torch.float32, device=gpu)
    part = Sample(sample.name, sample.x[:1023], sample.tensors, sample.options)
    grad_y = torch.randn(1024, 256, device=gpu)
    compiled = (npu.npu_forward_kernel, npu.npu_backward_x_kernel, npu.npu_backward_w_kernel)
    compiled = (*compiled, reduction.sum_partials_kernel)
    full = outputs(sample, kernels, grad_y)
    before = [len(kernel.device_caches[0][0]) for kernel in compiled]
    ragged = outputs(part, kernels, grad_y[:1023])
    assert [len(kernel.device_caches[0][0]) for kernel in compiled] == before
    for actual, expected in zip(ragged[:3], full[:3], strict=True):  # y, s, grad_x
        assert torch.equal(actual, expected[:1023])


def test_launches_of_a_small_step(gpu: str) -> None:
    """The profiler counts at most four kernels of ours and no copies, forward and backward."""
    layer = npu_kernels.NPU(6, 2, device=gpu)
    x = (torch.rand(100, 6, device=gpu) - 0.5).requires_grad_()
    grad_y = torch.ones(100, 2, device=gpu)
    layer(x).backward(grad_y)
    for tensor in (x, *layer.parameters()):
        tensor.grad = None
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    # Without acc_events some versions of torch warn that events are cleared.
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        layer(x).backward(grad_y)
        torch.cuda.synchronize()
    launched = [
        event.name
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    assert 0 < len(launched) <= 4, launched


@pytest.mark.parametrize("sizes", [(4096, 256, 256), (4099, 257, 259)])
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_large_layer(sizes: tuple[int, int, int], precision: str, gpu: str, kernels: Any) -> None:
    """The shipped configurations at full size: twice the eager error against float64."""
    sample = RECORDS["npu"].sample(*sizes, dtype=torch.float32, device=gpu)
    exact = sample.map(Tensor.double)
    grad_y = torch.randn_like(forward(sample, reference)[0]) / sizes[0]
    exact_outputs = outputs(exact, reference, grad_y.double())
    eager = outputs(sample, reference, grad_y)
    torch.set_float32_matmul_precision(precision)
    first_run, second_run = outputs(sample, kernels, grad_y), outputs(sample, kernels, grad_y)
    torch.set_float32_matmul_precision("highest")
    for actual, repeated, plain, want in zip(
        first_run, second_run, eager, exact_outputs, strict=True
    ):
        assert torch.equal(actual, repeated)
        error, eager_error = ((t.double() - want).norm() / want.norm() for t in (actual, plain))
        assert error <= {"highest": 2 * eager_error + 1e-7, "high": 1e-3, "medium": 1e-1}[precision]
