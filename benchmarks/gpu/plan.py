"""The parts of a run on a GPU, the most important first, as data: torch is not imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A part's items, in any order or at once unless `jobs` is 1; limits in seconds."""

    title: str
    seconds: float  # for the part
    item_seconds: float  # for one of its items
    items: tuple[str, ...]
    jobs: int = 1  # worker processes at most


SMALL, MEDIUM, LARGE = "100x6x2", "100x100x100", "1024x192x192"
# layer, sizes BxIxO or BxIxOxK, and what is not as usual: a dtype, a precision, an operand left
# out, a shared x.
LAUNCHES = (
    "npu 1024x512x512", "npu 1024x512x512 high", "npu 300x513x521",
    "npu 1024x512x512 without=gate", "npu 300x512x480x3 shared", "npu 1024x512x512 bfloat16",
    "npu 128x100x100x10", f"npu {SMALL}", f"npu {LARGE}", f"npu {MEDIUM}", f"npu {SMALL}x1000",
    f"npu {LARGE} high", f"npu {LARGE} medium", f"nmu {SMALL}", f"inalu {SMALL}", f"nalu {SMALL}",
    f"nmru {SMALL}", "ode 20x3x9", f"nmu {MEDIUM}", f"inalu {MEDIUM}", f"nalu {MEDIUM}",
    f"nmru {MEDIUM}", f"npu {SMALL} without=weight_im", f"npu {SMALL} without=gate",
    f"npu {LARGE} without=weight_im", f"npu {LARGE} without=gate", f"npu {SMALL}x20 shared",
    "npu 64x40x30x5 shared", "npu 256x101x3", "npu 1023x193x195", f"inalu {LARGE}",
    f"inalu {LARGE} high", f"nalu {LARGE}", f"npu {SMALL} float64", f"npu {MEDIUM} float64",
    f"inalu {SMALL} float64", f"nmu {SMALL} float64", f"npu {SMALL} bfloat16",
    f"npu {LARGE} bfloat16", f"npu {SMALL} float16", "ode 20x3x9 float64",
)  # fmt: skip
# Some 30 GiB each: one after the other, or a GPU of 80 GB has no room for them.
HUGE = "more_than_2_31"
# Files of tests and into how many items they are cut.
FIRST_TESTS = (
    ("test_large.py", 4), ("test_half.py", 2), ("test_gpu.py", 4), ("test_training.py", 3),
)  # fmt: skip
TESTS = (
    ("test_kernels.py", 6), ("test_special_values.py", 1), ("test_precision.py", 2),
    ("test_ode.py", 2), ("test_tuning.py", 1),
)  # fmt: skip
# Sizes, and a precision that is not "highest".
CASES = (
    "65536x512x512", "16384x1024x1024", SMALL, f"{SMALL}x1000", "65536x512x512 high",
    "4096x256x256", "128x100x100x100", "4096x512x512", "16384x1024x1024 high",
)  # fmt: skip
# The package is always timed. Rivals that compile have a part of their own: compilers are slow.
BENCH = tuple(f"{case} rivals=eager,graph,eager-graph,linear,linear-graph" for case in CASES)
COMPILE = tuple(f"{case} rivals=eager,compile,compile-graph" for case in CASES)
# The main sizes again: those whose kernels a tuned table may change.
TUNED_CASES = (
    f"{SMALL}x1000", "4096x256x256", "65536x512x512", "16384x1024x1024", "128x100x100x100", SMALL,
)  # fmt: skip
AGAIN = tuple(f"{case} rivals=eager,graph" for case in TUNED_CASES)
# Layers that are timed by both kinds of kernels, the one-pass ones and those on planes.
CROSSOVER = (
    "4096x512x512", "65536x512x512", "16384x1024x1024", "4096x256x256", "4096x128x128",
    "128x100x100x100", "128x100x100x20", "4096x64x64", "65536x512x512 high", "4096x256x256 high",
    "4096x2048x2048",
)  # fmt: skip
AUTOTUNE = tuple(f"{case} rivals=compile-autotune" for case in CASES)
TILED = ("npu_forward", "npu_backward_x", "npu_backward_w")
TUNED = tuple(
    f"{kernel} {size}"
    for kernels, sizes in (
        (TILED, ("128+4096x100x100", "4096x192x192")),
        (("npu_small_forward", "npu_small_backward"), (f"{SMALL}x1000", SMALL)),
        (TILED, ("4096x192x192 high",)),
        (("nalu_forward", "nalu_backward_x", "nalu_backward_w"), ("128+4096x100x100",)),
        (("nmu_forward", "nmu_backward"), ("128+4096x100x100",)),
    )
    for size in sizes
    for kernel in kernels
)

# NPU and NAU: trainings in CUDA graphs, one by one and by eager's formulas; rollouts, whose size is
# steps x D x h x K.
LOOPS = (
    "training 100x2x4 optimizer=named", "training 100x2x4x1000 optimizer=named",
    "training 100x2x4", "training 100x2x4 optimizer=fused-decay", "training 100x2x4x1000",
    "rollout 200x3x9", "rollout 200x3x9x100", "training 1024x64x64 optimizer=named",
)  # fmt: skip

COMMAND_SECONDS = 380.0  # of a command, unless it says another number
COMMANDS = 5  # for all parts; two are enough for those until "huge"


def _shards(files: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    return tuple(f"{file} {number}/{count}" for file, count in files for number in range(count))


# Right results first; then the times that count, in the order in which they decide something.
PARTS = {
    "env": Part("versions, the GPU, what runs on it", 40, 40, ("env",)),
    "smoke": Part("first launch of every kernel, its error against float64", 100, 60, LAUNCHES, 12),
    "tests": Part("pytest -m gpu, what runs only there", 150, 140, tuple(
        f"{item} without={HUGE}" for item in _shards(FIRST_TESTS)
    ), 13),
    "memcheck": Part("first launches under compute-sanitizer", 80, 70, (
        "npu 256x512x512", f"npu {SMALL}",
    ), 2),
    "bench": Part("the main sizes against eager, and in CUDA graphs", 80, 60, BENCH),
    "loops": Part("trainings in CUDA graphs, rollouts beside torchdiffeq", 100, 40, LOOPS),
    "crossover": Part("one-pass kernels and planes, in graphs and without", 120, 60,
                      CROSSOVER),
    "huge": Part("pytest -m gpu, tensors of more than 2^31 elements", 80, 75, (
        f"test_gpu.py 0/1 only={HUGE}",
    )),
    "warm": Part("the code of torch.compile for these sizes, in several processes", 100, 95,
                 COMPILE, 9),
    "compile": Part("the main sizes against torch.compile", 190, 90, COMPILE),
    "more": Part("pytest -m gpu, the other tests", 150, 140, _shards(TESTS), 12),
    "tune": Part("the fastest configuration of each kernel, by priority", 150, 60, TUNED),
    "rebench": Part("the main sizes with the tuned tables", 60, 60, AGAIN),
    "autotune": Part("the main sizes against torch.compile's max-autotune", 280, 95, AUTOTUNE),
}  # fmt: skip
# The same parts in Triton's interpreter on the CPU: whether they run.
REHEARSED = {
    "env": ("env",),
    "smoke": ("nmu 5x3x2x2 shared", "ode 3x2x2"),
    "tests": (f"test_tuning.py 0/40 without={HUGE}",),
    "memcheck": ("npu 3x2x2",),
    "bench": ("2x3x2 rivals=eager,graph,linear",),
    "loops": ("training 5x2x4", "rollout 3x2x2"),
    "crossover": ("3x20x17",),
    "huge": PARTS["huge"].items,
    "warm": ("2x3x2 rivals=eager",),
    "compile": (),
    "more": ("test_tuning.py 1/40",),
    "tune": ("nmu_forward 5+7x3x2",),
    "rebench": ("2x3x2 high rivals=eager",),
    "autotune": (),
}
REHEARSAL = {name: Part(PARTS[name].title, 60, 60, items) for name, items in REHEARSED.items()}


def rows_of(text: str) -> tuple[str, str, tuple[int, ...]]:
    """The kernel, its size, and other numbers of rows: of ``"nmu_forward 128+4096x100x100"``."""
    kernel, size = text.split()
    first, *more = size.partition("x")[0].split("+")
    return kernel, first + size[size.index("x") :], tuple(map(int, more))


def words(item: str) -> tuple[str, dict[str, str]]:
    """``"npu 5x3x2 high without=gate"``: the first words, and what follows by name."""
    kinds = dict.fromkeys(("high", "medium"), "precision")
    kinds |= dict.fromkeys(("float64", "float16", "bfloat16"), "dtype")
    kinds |= {"shared": "shared"}
    first, named = [], {}
    for word in item.split():
        name, equals, value = word.partition("=")
        if equals:
            named[name] = value
        elif word in kinds:
            named[kinds[word]] = word
        else:
            first.append(word)
    return " ".join(first), named
