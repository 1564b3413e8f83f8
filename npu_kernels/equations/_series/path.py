"""The trajectory of a fitted law at any times: between the nodes of its series, and beyond them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from npu_kernels.equations._series.laws import Law
from npu_kernels.equations._series.sensitivity import EPSILON, IMPLICIT, driven, flow
from npu_kernels.ode._loop import adaptive, methods
from npu_kernels.ode._loop import inputs as known
from npu_kernels.ode._loop.adaptive_reference import DONE, TOO_MANY
from npu_kernels.reference import CLIP

TOLERANCE = 1e-9  # rtol and atol, of scaled states, beyond the series
MAX_PREDICTION_STEPS, MAX_AT_BOUND = (
    1_000_000,
    100,
)  # of a trajectory; with as many the law is stiff


@dataclass(frozen=True)
class Path:
    """A series' trajectory. Its states are scaled, its times are the user's."""

    law: Law
    series: int
    nodes: Tensor  # [M], times
    table: known.Inputs | None  # the law's inputs, None without any

    @cached_property
    def weights(self) -> tuple[Tensor, Tensor]:
        """Exponents ``[1, h, D + J]`` and coefficients ``[1, D, h]`` of the scaled law."""
        shape = self.law.problem.shape
        exponents, rates, _ = shape.split(self.law.x.unsqueeze(0))
        states = shape.states - shape.inputs
        return exponents, shape.coefficients(exponents, rates)[:, :states]

    @cached_property
    def starts(self) -> Tensor:
        """The states ``[M, D]`` at the nodes, as they were fitted."""
        path = self.law.problem.states(self.law.x.unsqueeze(0))[0, self.series]
        return path[:, : self.weights[1].shape[1]]

    def along(self, times: Tensor) -> Tensor:
        """Return the states ``[m, D]`` at times; within the series by the steps of the fit."""
        first, last = float(self.nodes[0]), float(self.nodes[-1])
        states = times.new_empty(len(times), self.starts.shape[1])
        is_early, is_late = times < first, times > last
        within = ~(is_early | is_late)
        states[within] = self._between(times[within])
        states[is_early] = self.beyond(self.starts[0], times[is_early], first)
        states[is_late] = self.beyond(self.starts[-1], times[is_late], last)
        return states

    def _between(self, times: Tensor) -> Tensor:
        """Return the states at times within the series, each from the node before."""
        data, exponents, coefficients = self.law.problem.data, *self.weights
        node = torch.searchsorted(self.nodes, times, right=True) - 1
        begin, lengths = self.starts[node], (times - self.nodes[node]) / data.time
        exponents, coefficients = (
            part.expand(len(times), -1, -1) for part in (exponents, coefficients)
        )
        if data.slopes is not None:
            slopes = data.slopes[self.series]
            values = data.values[self.series, node, -data.inputs :]
            begin = torch.cat([begin, values], 1)
            wide = torch.nn.functional.pad(coefficients, (0, 0, 0, data.inputs))
            slopes = slopes[node.clamp(max=len(slopes) - 1)]
            exponents, coefficients = driven(exponents, wide, slopes)
        problem = self.law.problem
        path = flow(exponents, coefficients, begin, lengths, problem.steps, method=problem.method)
        return path[:, -1, : self.starts.shape[1]]

    def beyond(self, u: Tensor, times: Tensor, first: float) -> Tensor:
        """Return the states at times in any order, from the state u at the first, before or after.

        Steps are adaptive. Behind a pole the states are nan.
        """
        states = times.new_empty(len(times), len(u))
        for part, order in ((times >= first, 1.0), (times < first, -1.0)):
            index = part.nonzero().squeeze(1)
            index = index[(order * times[index]).argsort(stable=True)]
            path = torch.cat([times.new_tensor([first]), times[index]])
            distinct, number = path.unique_consecutive(return_inverse=True)
            ordered = self._ordered(u, distinct) if len(distinct) > 1 else u.unsqueeze(0)
            states[index] = ordered[number[1:]]
        return states

    def _ordered(self, u: Tensor, times: Tensor) -> Tensor:
        """Return the states at times that rise or fall, from the state u at the first."""
        data, weights = self.law.problem.data, self.weights
        origin = float(self.nodes[0])
        scaled_times = (times - origin) / data.time
        if self.table is None:
            return self._solved(*weights, u, scaled_times)
        table = known.Inputs(
            (self.table.times - origin) / data.time, self.table.values / data.size[-data.inputs :]
        )

        def solve(piece: known.Piece, state: Tensor) -> Tensor:
            laws = known.driven((weights[0], None, None, weights[1]), piece.slope, False)
            begin = known.with_inputs(state, piece.first)
            return self._solved(laws[0], laws[3], begin, piece.times)[:, : len(u)]

        return known.along(known.pieces("predict", table, scaled_times), u, solve)

    def _solved(self, exponents: Tensor, coefficients: Tensor, u: Tensor, times: Tensor) -> Tensor:
        """Return the states at times from the state u at the first, by adaptive steps."""
        weights = exponents, None, None, coefficients
        is_implicit = self.law.problem.method == IMPLICIT
        path = u.unsqueeze(0)
        for method in (IMPLICIT,) if is_implicit else (methods.EXPLICIT, IMPLICIT):
            bounds = (
                MAX_PREDICTION_STEPS,
                MAX_PREDICTION_STEPS + 1 if method == IMPLICIT else MAX_AT_BOUND,
            )
            call = adaptive.Call(
                method, TOLERANCE, TOLERANCE, *bounds, EPSILON, CLIP, False, "full", False
            )
            path, counts, _, _ = adaptive.run(call, times, u.unsqueeze(0), weights)
            status = int(counts[0, 0, 3])
            if status == DONE:
                break
        if status == TOO_MANY:
            raise ValueError(
                f"predict: t must be within {MAX_PREDICTION_STEPS} adaptive steps, got times whose "
                "last one is not reached by so many"
            )
        return path[0]
