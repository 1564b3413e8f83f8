"""What pytest-benchmark writes: the processor as the other rows name it, and no single rounds."""

from typing import Any

from benchmarks.throughput.environment import describe


def pytest_benchmark_update_machine_info(config: Any, machine_info: dict[str, Any]) -> None:
    machine_info.clear()
    machine_info.update(describe())


def pytest_benchmark_update_json(
    config: Any, benchmarks: list[Any], output_json: dict[str, Any]
) -> None:
    for row in output_json["benchmarks"]:
        row["stats"].pop("data", None)
