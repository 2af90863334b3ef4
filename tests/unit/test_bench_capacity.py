"""The arithmetic of the capacity plan."""

from hubsub_bench.capacity import Costs, reckon
from hubsub_bench.capacity_page import page, size_text
from hubsub_bench.machine import Machine

MACHINE = Machine("cpu", 4, 1, "Linux 6", "cubic", "3.11", "abc1234", "2026-01-02T03:04:05+00:00")
COSTS = Costs(
    machine=MACHINE,
    version="HubSub 0.1.0",
    connections=15_000,
    base_bytes=50 * 2**20,
    connection_bytes=300,
    subscription_bytes=100,
    room_bytes=200,
    kernel_bytes=4_000,
    per_core={"chat": 120_000.0},
)


def test_process_memory_is_base_plus_connections() -> None:
    assert reckon(COSTS, 1_000_000).process_bytes == 50 * 2**20 + 600 * 1_000_000


def test_kernel_memory_is_sockets_plus_the_buffers_in_use() -> None:
    assert reckon(COSTS, 100_000).kernel_bytes == 4_000 * 100_000 + 100_000 * 0.05 * 16_384


def test_descriptors_allow_every_connection() -> None:
    for connections in (100_000, 1_000_000, 3_000_000):
        sysctls = reckon(COSTS, connections).sysctls
        assert int(sysctls["fs.nr_open"]) > connections
        assert int(sysctls["fs.file-max"]) > int(connections)


def test_tcp_memory_covers_the_buffers_reckoned_with() -> None:
    low, pressure, high = map(int, reckon(COSTS, 600_000).sysctls["net.ipv4.tcp_mem"].split())
    assert low * 4096 >= 600_000 * 0.05 * 16_384
    assert low < pressure < high


def test_document_names_measurement_and_all_sizes() -> None:
    text = page(COSTS)
    assert "HubSub 0.1.0" in text and "abc1234" in text
    assert all(size in text for size in ("100,000", "600,000", "1,000,000"))
    assert "| together: a connection with a room of its own | 600 B |" in text
    assert "| 1,000,000 | 622 MiB | " in text


def test_sizes_are_readable() -> None:
    assert [size_text(value) for value in (450, 9_999, 2**20, 1.5 * 2**30, 3 * 2**40)] == [
        "450 B",
        "9,999 B",
        "1 MiB",
        "1.5 GiB",
        "3.07e+03 GiB",
    ]
