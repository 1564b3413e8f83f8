"""Questions that only a GPU answers: each is a function of the device that yields answers.

An answer says whether it is right, what was asked, and what was seen. On the CPU, in a rehearsal,
the same calls are made, smaller.
"""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.loops import UnknownLayer
from npu_kernels import NAU, NPU, functional, training, use_backend
from npu_kernels._triton import tuning

Answers = Iterator[tuple[bool, str, str]]
HOST_CALLS, CALLS_BEFORE = 300, 20


def _on_gpu(device: Any) -> bool:
    return bool(device.name == "cuda")


def _difference(a: Tensor, b: Tensor) -> float:
    """The Euclidean norm of the difference, relative to b's."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def _inputs(device: Any, *shape: int) -> Tensor:
    return torch.rand(*shape, device=device.name) + 0.5


def _silent_run(*arguments: Any, **settings: Any) -> training.TrainingResult:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return training.run(*arguments, progress=False, **settings)


def graphs(device: Any) -> Answers:
    """Whether captured trainings equal the ordinary loop.

    By today's optimisers, at sizes whose graphs take other kernels than ordinary calls too.
    """
    settings: list[dict[str, Any]] = [
        {}, {"optimizer": "rmsprop"}, {"lr": lambda step: 1e-3 / step**0.1},
    ]  # fmt: skip
    sizes = ((2, None), (2, 20), (64, None), (112, None), (176, None), (176, 3))
    for features, models in sizes if _on_gpu(device) else sizes[:1]:
        x = _inputs(device, *([] if models is None else [models]), 96, features)
        x[..., 0] -= 1
        for setting in settings:
            torch.manual_seed(1)
            model = nn.Sequential(
                NPU(features, features, num_models=models, device=device.name),
                NAU(features, 1, num_models=models, device=device.name),
            )
            one_by_one = nn.Sequential(copy.deepcopy(model), UnknownLayer())
            steps = 60 if _on_gpu(device) else 8
            runs = [
                _silent_run(module, x, x.mean(-1, keepdim=True), steps=steps, **setting)
                for module in (model, one_by_one)
            ]
            losses = _difference(runs[0].losses, runs[1].losses)
            pairs = zip(model.parameters(), one_by_one.parameters(), strict=True)
            weights = max(_difference(*pair) for pair in pairs)
            right = runs[0].captured == _on_gpu(device) and max(losses, weights) < 1e-3
            name = f"training of {features} features, {models or 1} models, {list(setting)}"
            seen = f"captured {runs[0].captured}, losses {losses:.1e}, weights {weights:.1e}"
            yield right, name, seen


def alive(device: Any) -> Answers:
    """Whether a training is captured while a result of the model is alive, as in a notebook.

    Before torch 2.13 it cannot be; then the notice names the cause.
    """
    x, stream = _inputs(device, 96, 2), torch.cuda.current_stream() if _on_gpu(device) else None
    model = NPU(2, 2, device=device.name)
    result = model(x)
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        run = training.run(model, x, x, steps=40, progress=False)
    texts = [str(notice.message) for notice in notices]
    told = any("is alive" in text for text in texts)
    right = run.captured or told or not _on_gpu(device)
    yield right, "captured while a result is alive, or told why not", str([t[:150] for t in texts])
    after = torch.cuda.current_stream() if _on_gpu(device) else None
    yield after == stream, "the current stream is that of before", str(result.shape)


def wrapped(device: Any) -> Answers:
    """Whether torch's own graphs of our layers compute the same."""
    if not _on_gpu(device):
        return
    for features in (2, 256):
        x, model = _inputs(device, 96, features), NPU(features, features, device=device.name)
        y = model(x)
        want = torch.autograd.grad(y.sum(), list(model.parameters()))
        y = y.detach()  # without the nodes that keep the stream of before
        graphed: Any = torch.cuda.make_graphed_callables(copy.deepcopy(model), (x,))
        z = graphed(x)
        gradients = torch.autograd.grad(z.sum(), list(graphed.parameters()))
        errors = [_difference(a, b) for a, b in zip(gradients, want, strict=True)]
        right = _difference(z, y) == 0 and max(errors) < 1e-5
        yield right, f"make_graphed_callables, {features} features", f"{max(errors):.1e}"
        del y, z, want, gradients, graphed
    model = NPU(6, 2, device=device.name)
    compiled = torch.compile(model, mode="reduce-overhead")
    errors = []
    for _ in range(5):
        x = _inputs(device, 100, 6)
        y = model(x).detach()
        torch.compiler.cudagraph_mark_step_begin()
        z = compiled(x)
        z.sum().backward()
        errors.append(_difference(z, y))
    yield max(errors) < 1e-6, "torch.compile, reduce-overhead", f"{max(errors):.1e}"


def flagged(device: Any) -> Answers:
    """Whether tiles that backward_x flags are right: several models, both heights of tiles."""
    k, b, i, o = (3, 300, 512, 480) if _on_gpu(device) else (2, 9, 20, 18)
    for precision, bound in (("highest", 2e-5), ("high", 2e-2)):
        torch.set_float32_matmul_precision(precision)
        torch.manual_seed(0)
        x, gate = torch.randn(k, b, i, device=device.name), torch.rand(k, i, device=device.name)
        scales = 10 ** (-9 * torch.rand(k, o, 1, device=device.name))
        weight = torch.randn(k, o, i, device=device.name) / i**0.5 * scales
        weight *= torch.rand_like(weight) > 0.97
        grad_y = torch.randn(k, b, o, device=device.name)

        def gradients(dtype: torch.dtype) -> tuple[Tensor, ...]:
            operands = (x, weight, 0.3 * weight, gate)  # noqa: B023
            leaves = [t.to(dtype).clone().requires_grad_() for t in operands]
            exact = dtype is torch.float64
            with use_backend("reference") if exact else contextlib.nullcontext():
                y = functional.npu(*leaves, eps=1e-5)
                return torch.autograd.grad(y, leaves, grad_y.to(dtype))  # noqa: B023

        ours, exact = gradients(torch.float32), gradients(torch.float64)
        of_input = (ours[0].double() - exact[0]).norm(dim=-2)
        worst = float((of_input / exact[0].norm(dim=-2).clamp_min(1e-300)).max())
        all_errors = [f"{_difference(a, e):.1e}" for a, e in zip(ours, exact, strict=True)]
        yield worst < bound, f"flagged tiles, {precision}", f"{worst:.1e} {all_errors}"


def rows(device: Any) -> Answers:
    """Whether table entries that were measured with 100 rows are as fast as the general ones."""
    names = ("npu_small_forward", "npu_small_backward")
    architecture = tuning.architecture_of(torch.empty(0, device=device.name).device)
    tables = tuning.tables_in_use().get(architecture, {})
    general = [tables[f"{name} float32 any small"] for name in names]
    for count in (100, 1000, 10000, 60000) if _on_gpu(device) else (3,):
        models = 1000 if _on_gpu(device) else 2
        x = _inputs(device, models, count, 6)
        model, grad_y = (
            NPU(6, 2, num_models=models, device=device.name),
            torch.ones_like(x)[..., :2],
        )
        step = partial(_both, model, x, grad_y)
        tuned = _device_us(device, step)
        with tuning.use_config(names[0], general[0]), tuning.use_config(names[1], general[1]):
            other = _device_us(device, step)
        right = tuned < 1.1 * other or not _on_gpu(device)
        seen = f"tuned {tuned:.0f} us, general {other:.0f} us"
        yield right, f"{models} models, {count} rows", seen


def _both(model: nn.Module, x: Tensor, grad_y: Tensor) -> None:
    """A forward and a backward."""
    model.zero_grad()
    model(x).backward(grad_y)


def _forward(model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        model(x)


def _device_us(device: Any, run: Callable[[], object]) -> float:
    """Microseconds between two events around a call: the median."""
    for _ in range(5):
        run()
    return 1e6 * statistics.median(device.seconds(run) for _ in range(30))


def host(device: Any) -> Answers:
    """The parts of the host's time, beside nn.Linear: nothing is right or wrong."""
    layers = {"NPU": NPU(6, 2, device=device.name), "Linear": nn.Linear(6, 2, device=device.name)}
    x, grad_y = _inputs(device, 100, 6), torch.ones(100, 2, device=device.name)
    for name, layer in layers.items():
        calls = {
            "no_grad": partial(_forward, layer, x), "forward": partial(layer, x),
            "forward + backward": partial(_both, layer, x, grad_y),
        }  # fmt: skip
        times = [f"{title} {_host_us(device, call):.0f} us" for title, call in calls.items()]
        yield True, f"host, {name}", ", ".join(times)


def _host_us(device: Any, run: Callable[[], object]) -> float:
    """Microseconds of a call until it returns: the median."""
    times = []
    for number in range(CALLS_BEFORE + (HOST_CALLS if _on_gpu(device) else 1)):
        begin = time.perf_counter()
        run()
        times += [time.perf_counter() - begin] if number >= CALLS_BEFORE else []
    return 1e6 * statistics.median(times)


QUESTIONS: dict[str, Callable[[Any], Answers]] = {
    question.__name__: question for question in (graphs, alive, wrapped, flagged, rows, host)
}
