"""Makes Triton's interpreter twice as fast for the tests, and right for small numbers in bfloat16.

The interpreter works out the same things again for every operation. Each change but the last
remembers what depends on a function's arguments alone. Where a release of Triton lacks a function,
the change is left out.
"""

import contextlib
from typing import Any

import numpy
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter


def quicken() -> None:
    """Change the interpreter of this process. A second call changes nothing."""
    if hasattr(interpreter, "quickened"):
        return
    interpreter.quickened = True
    for change in (
        _prepare_the_language_once, _remember_numpy_types, _remember_block_types, _remember_shapes,
        _broadcast_equal_shapes_at_once, _read_subnormal_bfloat16,
    ):  # fmt: skip
        with contextlib.suppress(AttributeError):
            change()


def _prepare_the_language_once() -> None:
    """Replace `triton.language`'s functions once for a launch, not for each inner function."""
    original = interpreter._patch_lang
    prepared: set[Any] = set()  # the modules of the launch at work

    def prepare(fn: Any) -> Any:
        modules = {
            module for module in fn.__globals__.values() if module is tl or module is tl.core
        }
        if prepared and modules <= prepared:
            return None  # nobody undoes what an inner call has replaced
        scope, inner = original(fn), bool(prepared)
        prepared.update(modules)
        if not inner:
            restore = scope.restore

            def restore_and_forget() -> None:
                prepared.clear()
                restore()

            scope.restore = restore_and_forget
        return scope

    interpreter._patch_lang = prepare


def _remember_numpy_types() -> None:
    original, types = interpreter._get_np_dtype, {}

    def numpy_type(dtype: Any) -> numpy.dtype:
        name = dtype.scalar.name
        if name not in types:
            types[name] = original(dtype)
        return types[name]

    interpreter._get_np_dtype = numpy_type


def _remember_block_types() -> None:
    """The shape, checked, and the name. Equal shapes become the same object."""
    original, names, shapes = tl.block_type.__init__, {}, {}

    def initialize(self: Any, element_ty: Any, shape: Any) -> None:
        values = shape.values if isinstance(shape, tl.core.tuple) else shape
        sizes = (*(value.value if isinstance(value, tl.constexpr) else value for value in values),)
        name = names.get((element_ty.name, sizes))
        if name is None:
            original(self, element_ty, shape)
            names[element_ty.name, sizes] = self.name
            self.shape, self.numel = shapes.setdefault(sizes, (self.shape, self.numel))
        else:
            self.element_ty, self.name = element_ty, name
            self.shape, self.numel = shapes[sizes]

    tl.block_type.__init__ = initialize


def _remember_shapes() -> None:
    """A tensor's shape as constants."""
    original, shapes = tl.tensor.__init__, {}

    def initialize(self: Any, handle: Any, type: Any) -> None:
        sizes = (*type.shape.values,) if type.is_block() else ()
        remembered = shapes.get(sizes)
        if remembered is None:
            original(self, handle, type)
            shapes[sizes] = self.shape, self.numel
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = remembered

    tl.tensor.__init__ = initialize


def _broadcast_equal_shapes_at_once() -> None:
    original = TritonSemantic.broadcast_impl_value

    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        lhs_type, rhs_type = lhs.type, rhs.type
        if lhs_type.is_block() and rhs_type.is_block() and lhs_type.shape is rhs_type.shape:
            return lhs, rhs
        return original(self, lhs, rhs)

    TritonSemantic.broadcast_impl_value = broadcast


def _read_subnormal_bfloat16() -> None:
    """Convert as a GPU does: a bfloat16 is the first half of a float32. The interpreter gives 0 or
    four times the number."""
    original = interpreter._convert_float

    def convert(input: Any, input_dtype: Any, output_dtype: Any, rounding_mode: Any) -> Any:
        if input_dtype == tl.bfloat16 and output_dtype == tl.float32:
            return input.view(numpy.uint16).astype(numpy.uint32) << 16
        return original(input, input_dtype, output_dtype, rounding_mode)

    interpreter._convert_float = convert
