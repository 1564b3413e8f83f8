"""The rivals. Every one makes a module from the same operands; a workload runs one pass of it.

ours               npu_kernels' layer; to train it, its loss and Adam, or `training.run`
eager              npu_kernels.reference under autograd: for models, all of them in one batched call
layers             npu_kernels' layers with torch's loss and optimizer (a step), one by one (a run)
loop               one eager model after the other, in a Python loop (training with models)
compile            torch.compile of eager, default mode
ours-compile       torch.compile of our layer; to train it, with torch's loss and Adam
compile-graph      mode="reduce-overhead": torch's own CUDA graphs (on a GPU)
compile-autotune   mode="max-autotune"
compile-vjp        torch.compile of eager's `torch.func.vjp`: y and all gradients in one graph
hand-written       torch.compile of a forward and a backward written by hand in torch
hand-written-graph both of these in one graph, without autograd
make-step          our layers by `training.make_step` (a training step)
compile-step       torch.compile of a whole training step: eager's loss, its gradients and Adam
compile-chunks     torch.compile of 20 steps of a rollout at once
graph, eager-graph, linear-graph
                   a pass of ours, eager, linear captured in a CUDA graph and replayed (on a GPU)
complex            Re(exp(W log x)) in complex64, the gate as in the layer
one-model          our layer with one of the models: what K models should not cost much more than
one-thread         ours in one thread, for rows with several: it says what these gain
jax                jax.jit of the formula and its vjp, jax.lax.scan of a run, if JAX is installed
torchdiffeq, scipy, diffrax
                   dopri5 of these, where they are installed (the pass "adaptive")
linear             nn.Linear of the shape, a batched product for models: it computes something else
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import npu_kernels
from benchmarks.throughput import adaptives, cases, derivatives, rollouts, runs
from benchmarks.throughput.cases import Case, Operands, Workload
from benchmarks.throughput.environment import cores
from npu_kernels import functional, optim, reference, training

OURS, EAGER, LAYERS, LOOP = "ours", "eager", "layers", "loop"
COMPILE, COMPILE_GRAPH, AUTOTUNE = "compile", "compile-graph", "compile-autotune"
OURS_COMPILE = "ours-compile"
HAND_WRITTEN, HAND_WRITTEN_GRAPH = "hand-written", "hand-written-graph"
COMPILE_VJP, COMPILE_CHUNKS = "compile-vjp", "compile-chunks"
ONE_GRAPH = COMPILE_VJP, HAND_WRITTEN_GRAPH
MAKE_STEP, COMPILE_STEP = "make-step", "compile-step"
COMPLEX, ONE_MODEL, JAX, LINEAR = "complex", "one-model", "jax", "linear"
ONE_THREAD = "one-thread"
TORCHDIFFEQ, SCIPY, DIFFRAX = SOLVERS = "torchdiffeq", "scipy", "diffrax"
GRAPH, EAGER_GRAPH, LINEAR_GRAPH = "graph", "eager-graph", "linear-graph"
GRAPHS = {GRAPH: OURS, EAGER_GRAPH: EAGER, LINEAR_GRAPH: LINEAR}  # captured passes of whom
COMPILED = {
    COMPILE: "default",
    OURS_COMPILE: "default",
    COMPILE_GRAPH: "reduce-overhead",
    AUTOTUNE: "max-autotune",
    **dict.fromkeys(
        (COMPILE_VJP, HAND_WRITTEN, HAND_WRITTEN_GRAPH, COMPILE_STEP, COMPILE_CHUNKS), "default"
    ),
}  # mode
RIVALS = (
    OURS, MAKE_STEP, EAGER, LAYERS, LOOP, *COMPILED, COMPLEX, ONE_MODEL, ONE_THREAD, JAX, *SOLVERS,
    LINEAR, *GRAPHS,
)  # fmt: skip
# They compute something else, or are ours with other means: nobody loses to them.
YARDSTICKS = ONE_MODEL, ONE_THREAD, LINEAR, LINEAR_GRAPH, MAKE_STEP
Capture = tuple[Callable[[], object], Any]  # what replays a pass, and what the pass returned


# ---- formulas ------------------------------------------------------------------------------------


def _npu(x: Tensor, weight_re: Tensor, weight_im: Tensor, gate: Tensor) -> Tensor:
    return reference.npu(x, weight_re, weight_im, gate, eps=cases.EPS)


def _our_npu(x: Tensor, weight_re: Tensor, weight_im: Tensor, gate: Tensor) -> Tensor:
    return functional.npu(x, weight_re, weight_im, gate, eps=cases.EPS)


FORMULAS: dict[str, Callable[..., Tensor]] = {
    "npu": _npu,
    "realnpu": lambda x, weight, gate: reference.npu(x, weight, None, gate, eps=cases.EPS),
    **{name: getattr(reference, name) for name in (*cases.PRODUCTS, *cases.SIBLINGS[1:])},
    "naivenpu": lambda x, weight_re, weight_im: reference.npu(
        x, weight_re, weight_im, eps=cases.EPS
    ),
    "npu-nau": lambda x, re, im, gate, a: reference.nau(_npu(x, re, im, gate), a, clip=False),
}


def _complex_npu(x: Tensor, weight_re: Tensor, weight_im: Tensor, gate: Tensor) -> Tensor:
    g = gate.clamp(0, 1).unsqueeze(-2)
    r = g * (x.abs() + cases.EPS) + (1 - g)
    log_x = torch.complex(r.log(), math.pi * g * (x < 0).to(x.dtype))
    return (log_x @ torch.complex(weight_re, weight_im).mT).exp().real


COMPLEX_FORMULAS: dict[str, Callable[..., Tensor]] = {
    "npu": _complex_npu,
    "realnpu": lambda x, weight, gate: _complex_npu(x, weight, torch.zeros_like(weight), gate),
}


Saved = tuple[Tensor, ...]


def _forward_by_hand(
    x: Tensor, weight_re: Tensor, weight_im: Tensor, gate: Tensor
) -> tuple[Tensor, Saved]:
    """Return y and what the backward needs, by one matrix product: what a careful user writes."""
    g = gate.clamp(0, 1).unsqueeze(-2)
    r, negative = g * (x.abs() + cases.EPS) + (1 - g), (x < 0).to(x.dtype)
    features, phase = torch.cat((r.log(), negative), -1), math.pi * g
    real = torch.cat((weight_re, -weight_im * phase), -1)
    imaginary = torch.cat((weight_im, weight_re * phase), -1)
    log_size, angle = (features @ torch.cat((real, imaginary), -2).mT).chunk(2, -1)
    size = log_size.exp()
    y, s = size * angle.cos(), size * angle.sin()
    return y, (x, weight_re, weight_im, gate, r, features, y, s)


def _backward_by_hand(grad_y: Tensor, saved: Saved) -> tuple[Tensor, ...]:
    """Return the gradients of x and the weights, by two matrix products."""
    x, weight_re, weight_im, gate, r, features, y, s = saved
    g, outputs, inputs = gate.clamp(0, 1).unsqueeze(-2), y.shape[-1], x.shape[-1]
    of_sizes = torch.cat((grad_y * y, -grad_y * s), -1)
    of_r = of_sizes @ torch.cat((weight_re, weight_im), -2) / r
    of_pairs = of_sizes.mT @ features
    (re_log, re_sign), (im_log, im_sign) = (
        half.split(inputs, -1) for half in of_pairs.split(outputs, -2)
    )
    of_gate = (of_r * (x.abs() + cases.EPS - 1)).sum(-2)
    of_gate = of_gate + math.pi * (weight_re * im_sign - weight_im * re_sign).sum(-2)
    inside = (gate >= 0) & (gate <= 1)
    phase = math.pi * g
    return (
        of_r * g * x.sign(), re_log + im_sign * phase, im_log - re_sign * phase, of_gate * inside,
    )  # fmt: skip


class HandWritten(torch.autograd.Function):
    """The NPU with its backward by hand, for autograd."""

    @staticmethod
    def forward(ctx: Any, *operands: Tensor) -> Tensor:
        y, saved = _forward_by_hand(*operands)
        ctx.save_for_backward(*saved)
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor, ...]:
        return _backward_by_hand(grad_y, ctx.saved_tensors)


def _one_graph(rival: str, case: Case, operands: Operands) -> Workload:
    """y and all gradients as one compiled function, without autograd at run time."""
    formula = FORMULAS[case.layer]

    def by_hand(grad_y: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        y, saved = _forward_by_hand(*inputs)
        return y, *_backward_by_hand(grad_y, saved)

    def by_vjp(grad_y: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        pair: Any = torch.func.vjp(formula, *inputs)
        return pair[0], *pair[1](grad_y)

    inputs = operands.grad_y, operands.x, *operands.parameters
    compiled: Any = torch.compile(by_vjp if rival == COMPILE_VJP else by_hand, dynamic=False)
    return Workload(lambda: compiled(*inputs), lambda: list(compiled(*inputs)))


class Formula(nn.Module):
    """A formula with its parameters."""

    def __init__(self, function: Callable[..., Tensor], parameters: Sequence[Tensor]) -> None:
        super().__init__()
        self.function = function
        for index, parameter in enumerate(parameters):
            self.register_parameter(f"weight{index}", nn.Parameter(parameter.clone()))

    def forward(self, x: Tensor) -> Tensor:
        # ParameterList costs microseconds per call.
        return self.function(x, *self._parameters.values())


# ---- modules -------------------------------------------------------------------------------------


def _ours(case: Case, operands: Operands) -> nn.Module:
    size = case.size
    models = None if size.models == 1 else size.models
    if case.kind in (cases.TRAIN, cases.RUN):
        module: nn.Module = nn.Sequential(
            npu_kernels.NPU(size.inputs, cases.hidden(size), num_models=models),
            npu_kernels.NAU(cases.hidden(size), size.outputs, num_models=models, clip=False),
        )
    else:
        module = cases.UNITS[case.layer](size.inputs, size.outputs, num_models=models)
        module.eval()  # as the formulas' defaults
    return cases.filled(module, operands.parameters)


def _linear(case: Case, operands: Operands) -> nn.Module:
    size = case.size
    if size.models == 1:
        return nn.Linear(size.inputs, size.outputs, device=operands.x.device)
    weight = torch.randn(size.models, size.outputs, size.inputs, device=operands.x.device)
    return Formula(lambda x, w: x @ w.mT, [weight])


def _model(operands: Operands, k: int) -> Operands:
    """The operands of model k."""
    return Operands(operands.x[k], tuple(p[k] for p in operands.parameters), operands.grad_y[k])


def _single(case: Case) -> Case:
    """The case with one model."""
    return replace(case, size=replace(case.size, models=1))


# ---- passes --------------------------------------------------------------------------------------


def _layer_workload(case: Case, module: nn.Module, operands: Operands, compare: bool) -> Workload:
    if case.kind == cases.FORWARD:

        def forward() -> Tensor:
            with torch.no_grad():
                y: Tensor = module(x)
            return y

        x = operands.x
        return Workload(forward, (lambda: [forward()]) if compare else None)

    x = cases.leaf(operands.x)
    return cases.both_ways(lambda: module(x), [x, *module.parameters()], operands.grad_y, compare)


def _loss(y: Tensor, target: Tensor) -> Tensor:
    """The sum over the models of their mean squared errors: each is trained as if it were alone."""
    if y.dim() == 2:
        return nn.functional.mse_loss(y, target)
    return (y - target).square().mean((-2, -1)).sum()


def _our_loss(y: Tensor, target: Tensor) -> Tensor:
    if y.dim() == 2:
        return training.mse_loss(y, target)
    return training.mse_loss(y, target, num_models=y.shape[0]).sum()


def _training_workload(
    modules: Sequence[nn.Module], batches: Sequence[Operands], compare: bool, ours: bool = False
) -> Workload:
    adam, loss_of = (optim.Adam, _our_loss) if ours else (torch.optim.Adam, _loss)
    optimizers = [adam(m.parameters(), lr=cases.LEARNING_RATE, fused=True) for m in modules]
    together = list(zip(modules, optimizers, batches, strict=True))

    def gradients(module: nn.Module, optimizer: torch.optim.Optimizer, batch: Operands) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(module(batch.x), batch.grad_y)
        loss.backward()
        return loss

    def step() -> None:
        for module, optimizer, batch in together:
            gradients(module, optimizer, batch)
            optimizer.step()

    def results() -> list[Tensor]:
        loss = gradients(*together[0])
        return [loss.detach(), *(p.grad for p in modules[0].parameters() if p.grad is not None)]

    return Workload(step, results if compare and len(modules) == 1 else None)


def _made_step(module: nn.Module, operands: Operands) -> Workload:
    optimizer = optim.Adam(module.parameters(), lr=cases.LEARNING_RATE)
    step = training.make_step(module, optimizer, project=False)
    return Workload(lambda: step(operands.x, operands.grad_y), None)


def _compiled_step(case: Case, operands: Operands) -> Workload:
    """A training step as one compiled function; Adam's formula, whose step numbers are a tensor."""
    parameters = [parameter.clone() for parameter in operands.parameters]
    means, squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    count, formula = torch.zeros(()), FORMULAS[case.layer]
    adam = torch.optim.Adam([torch.zeros(1, requires_grad=True)]).defaults

    def loss(*parameters: Tensor) -> Tensor:
        return _loss(formula(operands.x, *parameters), operands.grad_y)

    def step(parameters: list[Tensor], means: list[Tensor], squares: list[Tensor]) -> Tensor:
        every = tuple(range(len(parameters)))
        gradients, value = torch.func.grad_and_value(loss, argnums=every)(*parameters)
        beta1, beta2 = adam["betas"]
        count.add_(1)
        rate = cases.LEARNING_RATE / (1 - beta1**count)
        scale = (1 - beta2**count).sqrt()
        for p, grad, mean, square in zip(parameters, gradients, means, squares, strict=True):
            mean.lerp_(grad, 1 - beta1)
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            p.sub_(rate * mean / (square.sqrt() / scale + adam["eps"]))
        return value

    compiled: Any = torch.compile(step, dynamic=False)
    return Workload(lambda: compiled(parameters, means, squares), None)


def _workload(
    case: Case, module: nn.Module, operands: Operands, compare: bool = True, ours: bool = False
) -> Workload:
    if case.kind == cases.TRAIN:
        return _training_workload([module], [operands], compare, ours)
    return _layer_workload(case, module, operands, compare)


def _loop(case: Case, operands: Operands) -> Workload:
    batches = [_model(operands, k) for k in range(case.size.models)]
    modules = [Formula(FORMULAS[case.layer], batch.parameters) for batch in batches]
    return _training_workload(modules, batches, False)


def captured(
    workload: Workload, capture: Callable[[Callable[[], Any]], Capture] | None
) -> Workload:
    """The workload replayed from a graph, whose tensors stay: results are read after a replay."""
    if capture is None:
        raise ValueError("rivals.build: this device captures no graphs")
    captured_pass = workload.run if workload.results is None else workload.results
    replay, outputs = capture(captured_pass)

    def results() -> list[Tensor]:
        replay()
        return list(outputs)

    given = None if workload.results is None else results
    return Workload(replay, given, keeps=captured_pass)


# ---- JAX -----------------------------------------------------------------------------------------


def _jax(case: Case, operands: Operands) -> Workload:
    import jax
    import jax.numpy as jnp
    import numpy as np

    def npu(x: Any, *parameters: Any) -> Any:
        weight_im = parameters[1] if case.layer == "npu" else None
        return runs.npu(jnp, x, parameters[0], weight_im, parameters[-1])

    def both(grad_y: Any, *inputs: Any) -> Any:
        y, vjp = jax.vjp(npu, *inputs)
        return (y, *vjp(grad_y))

    inputs = [jnp.asarray(t.numpy()) for t in (operands.x, *operands.parameters)]
    grad_y = jnp.asarray(operands.grad_y.numpy())
    forward, step = jax.jit(npu), jax.jit(both)

    def run() -> Any:
        if case.kind == cases.FORWARD:
            return [jax.block_until_ready(forward(*inputs))]
        return jax.block_until_ready(step(grad_y, *inputs))

    return Workload(run, lambda: [torch.from_numpy(np.array(a)) for a in run()])


# ---- the list ------------------------------------------------------------------------------------


@functools.cache
def compiler_missing(device: str = "cpu") -> str:
    """The reason why torch.compile does not work here, or ""."""
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(8, device=device))
    except Exception as error:  # whatever the compiler's tool chain raises
        return f"torch.compile does not work here: {str(error).strip().splitlines()[0]}"
    return ""


def not_applicable(
    rival: str, case: Case, threads: int, device: str = "cpu", captures: bool | None = None
) -> str | None:
    """The reason for leaving a rival out: None when it takes part, "" when it makes no sense."""
    if rival == ONE_THREAD:
        return None if threads > 1 and device == "cpu" else ""
    models, training_pass = case.size.models > 1, case.kind in (cases.TRAIN, cases.RUN)
    captures = device != "cpu" if captures is None else captures
    if case.kind == cases.ADAPTIVE or rival in SOLVERS:
        return _not_adaptive(rival, case, threads)
    if case.kind in cases.DERIVATIVES and rival not in (OURS, EAGER, COMPILE):
        return ""
    layer_pass = case.kind in (cases.FORWARD, cases.STEP)
    senseless = {
        LOOP: not (training_pass and models),
        **dict.fromkeys(GRAPHS, not (captures and layer_pass)),
        OURS_COMPILE: case.kind not in (cases.FORWARD, cases.STEP, cases.TRAIN),
        COMPILE_GRAPH: device == "cpu" or not layer_pass,
        COMPILE_VJP: case.kind != cases.STEP,
        **dict.fromkeys(
            (HAND_WRITTEN, HAND_WRITTEN_GRAPH), case.layer != "npu" or case.kind != cases.STEP
        ),
        COMPILE_CHUNKS: case.kind != cases.ROLLOUT,
        LAYERS: not training_pass,
        MAKE_STEP: case.kind != cases.TRAIN or device != "cpu",
        COMPILE_STEP: not training_pass or device != "cpu",
        ONE_MODEL: not models or case.kind == cases.RUN,
        COMPLEX: case.layer not in COMPLEX_FORMULAS,
        LINEAR: training_pass or case.kind == cases.ROLLOUT,
        AUTOTUNE: case.kind == cases.ROLLOUT,
        JAX: (case.layer not in ("npu", "realnpu") and case.kind != cases.RUN) or device != "cpu",
    }
    if senseless.get(rival, False):
        return ""
    if rival in COMPILED:
        return compiler_missing(device) or None
    if rival == JAX:
        if importlib.util.find_spec("jax") is None:
            return "JAX is not installed"
        return _all_cores("JAX", threads)
    return None


def _not_adaptive(rival: str, case: Case, threads: int) -> str | None:
    if case.kind != cases.ADAPTIVE or rival not in adaptives.PASSES:
        return ""
    if rival in SOLVERS and importlib.util.find_spec(rival) is None:
        return f"{rival} is not installed"
    return _all_cores("diffrax", threads) if rival == DIFFRAX else None


def _all_cores(name: str, threads: int) -> str | None:
    """The reason why a library that takes every core is left out of rows with other threads."""
    if threads == cores():
        return None
    rule = f"{name} takes all {cores()} cores, so it is left out of the rows with {threads}"
    return f"{rule} (taskset gives it fewer)"


def _in_one_thread(workload: Workload) -> Workload:
    """The workload with torch's number of threads changed around each run: .2 microseconds."""

    def run() -> object:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return workload.run()
        finally:
            torch.set_num_threads(threads)

    return replace(workload, run=run)


def _rollout(rival: str, case: Case, operands: Operands) -> Workload:
    if rival == ONE_MODEL:
        return replace(rollouts.ours(_single(case), _model(operands, 0)), results=None)
    if rival == OURS:
        return rollouts.ours(case, operands)
    chunks = {COMPILE: 1, COMPILE_CHUNKS: rollouts.CHUNK}
    return rollouts.eager(case, operands, compiled_steps=chunks.get(rival, 0))


def _derivative(rival: str, case: Case, operands: Operands) -> Workload:
    formula = FORMULAS[case.layer] if rival != OURS else _our_npu
    return derivatives.workload(case.kind, formula, operands, COMPILED.get(rival))


def _run(rival: str, case: Case, operands: Operands) -> Workload:
    if rival == JAX:
        return runs.jax(operands)
    if rival == OURS:
        return runs.ours(lambda: _ours(case, operands), operands)
    if rival == LOOP:
        step = _loop(case, operands).run
        return runs.repeated(nn.Module, lambda _: step, compare=False)
    if rival == COMPILE_STEP:
        compiled = _compiled_step(case, operands).run
        return runs.repeated(nn.Module, lambda _: compiled, compare=False)

    def make() -> nn.Module:
        return _ours(case, operands) if rival == LAYERS else _formula(rival, case, operands)

    def step_of(module: nn.Module) -> Callable[[], object]:
        return _training_workload([module], [operands], False, rival == LAYERS).run

    return runs.repeated(make, step_of)


def _formula(rival: str, case: Case, operands: Operands) -> nn.Module:
    """The eager formula, compiled for a rival that compiles it."""
    function: Any = HandWritten.apply if rival == HAND_WRITTEN else FORMULAS[case.layer]
    module = Formula(function, operands.parameters)
    if rival in COMPILED:
        module.compile(dynamic=False, mode=COMPILED[rival])
    return module


def build(
    rival: str, case: Case, operands: Operands,
    capture: Callable[[Callable[[], Any]], Capture] | None = None,
) -> Workload:  # fmt: skip
    """The rival's workload for the case; `capture` is the device's, for those in GRAPHS."""
    if rival == ONE_THREAD:
        return _in_one_thread(build(OURS, case, operands))
    if case.kind == cases.ADAPTIVE:
        return adaptives.PASSES[rival](case, operands)
    of_pass = {cases.ROLLOUT: _rollout, cases.RUN: _run}
    of_pass |= dict.fromkeys(cases.DERIVATIVES, _derivative)
    if case.kind in of_pass:
        return of_pass[case.kind](rival, case, operands)
    if rival in GRAPHS:
        return captured(build(GRAPHS[rival], case, operands), capture)
    if rival in (OURS, LAYERS):
        return _workload(case, _ours(case, operands), operands, ours=rival == OURS)
    if rival == MAKE_STEP:
        return _made_step(_ours(case, operands), operands)
    if rival == COMPILE_STEP:
        return _compiled_step(case, operands)
    if rival in ONE_GRAPH:
        return _one_graph(rival, case, operands)
    if rival == ONE_MODEL:
        single, first = _single(case), _model(operands, 0)
        return _workload(single, _ours(single, first), first, compare=False, ours=True)
    if rival == LOOP:
        return _loop(case, operands)
    if rival == LINEAR:
        return _workload(case, _linear(case, operands), operands, compare=False)
    if rival == JAX:
        return _jax(case, operands)
    if rival == COMPLEX:
        return _workload(case, Formula(COMPLEX_FORMULAS[case.layer], operands.parameters), operands)
    if rival == OURS_COMPILE:  # `module.compile()` would compile the layers of a Sequential apart
        compiled: Any = torch.compile(_ours(case, operands), dynamic=False)
        return _workload(case, compiled, operands)
    return _workload(case, _formula(rival, case, operands), operands)


def exact(case: Case, operands: Operands) -> list[Tensor]:
    """The eager results in float64 from the same float32 operands, to measure errors against.

    A rollout computes in float64 itself: its error is its difference to eager's, whose error is 0.
    That of adaptive steps is against eager's at a far smaller tolerance.
    """
    double = operands.to(torch.float64)
    is_adaptive = case.kind == cases.ADAPTIVE
    workload = adaptives.exact(case, double) if is_adaptive else build(EAGER, case, double)
    assert workload.results is not None
    return list(workload.results())


def error(results: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    """The greatest relative error, in the Euclidean norm, of the outputs and gradients."""
    worst = 0.0
    for result, true in zip(results, truth, strict=False):  # SciPy has no gradients
        norm = true.norm()
        if norm > 0:
            worst = max(worst, ((result.double() - true).norm() / norm).item())
    return worst
