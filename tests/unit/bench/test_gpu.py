"""The benchmark of the trainer's step compares like with like."""

from bench.gpu import compared, drawn, measure, rows


def test_a_precision_is_compared_with_the_better_loop_of_that_precision() -> None:
    epochs = rows(drawn(12), "mlp", "cpu", 4)
    times: dict[str, list[float]] = {name: [] for name in epochs}
    measure(epochs, 2, times)
    table = compared(epochs, times, 3)
    assert [name for name in table if name.startswith("trainer")] == [
        "trainer, float32",
        "trainer, bfloat16",
    ]
    for precision in ("float32", "bfloat16"):
        own = {name: row for name, row in table.items() if f", {precision}" in name}
        loops = [row["ms"] for name, row in own.items() if name.startswith("loop")]
        assert len(loops) == 2
        for row in own.values():
            assert row["ratio"] == row["ms"] / min(loops)
            assert 0 < row["least"] <= row["ms"] <= row["most"]
            assert row["times"] == 2


def test_what_was_not_measured_has_no_row() -> None:
    epochs = rows(drawn(4), "mlp", "cpu", 4)
    times = {name: [0.5] * name.startswith("loop, float32") for name in epochs}
    assert list(compared(epochs, times, 2)) == [
        "loop, float32, channels first",
        "loop, float32, channels last",
    ]
    assert compared(epochs, {name: [] for name in epochs}, 2) == {}
