"""The benchmark of the trainer's step compares like with like."""

from bench.gpu import drawn, measured, rows


def test_a_precision_is_compared_with_the_better_loop_of_that_precision() -> None:
    epochs = rows(drawn(12), "mlp", "cpu", 4)
    table = measured(epochs, 3, 2)
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
