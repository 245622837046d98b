"""What one run breaks is told in its place, and all the rest of the report stays."""

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from common.errors import DataError
from deploy.report import figures, report_json
from deploy.report.fallback import with_fallback
from deploy.report.figures import FIGURES, write_figures
from deploy.report.html import page, study_tables, study_view
from deploy.report.html.page import render
from deploy.report.html.study_view import FigureGroup
from deploy.report.run_groups import Study, group_runs
from tests.unit.deploy.report.test_figures import made_up
from tests.unit.deploy.report.test_page import EVIL, Reader

RUNS = [made_up("one", 4), made_up("two", 4)]
SAID = "cannot be drawn"


def broken(study: object) -> NoReturn:
    raise ValueError(EVIL)


BROKEN = (replace(FIGURES[0], draw=broken), *FIGURES[1:3])


def test_a_figure_that_fails_is_named_in_its_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(page, "FIGURES", BROKEN)
    text = render(RUNS)
    seen = Reader(text)
    assert f"Accuracy over the rounds {SAID}: ValueError: <script>" in seen.text
    assert "<script>alert" not in text
    assert seen.text.count(SAID) == 1
    assert 'id="s1-clients-figure_1"' in text
    assert f"Accuracy over the rounds {SAID}" in caplog.text


def test_a_table_that_fails_is_named_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_tables, "difference_table", broken)
    text = Reader(render(RUNS)).text
    assert f"Difference to the reference {SAID}: ValueError" in text
    assert text.count(SAID) == 1
    assert "Exact settings" in text


def test_a_study_that_fails_whole_is_named_with_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = study_view.figure_groups

    def groups(study: Study, number: int, specs: object) -> list[FigureGroup]:
        return broken(study) if number == 1 else whole(study, number, FIGURES[:1])

    monkeypatch.setattr(study_view, "figure_groups", groups)
    runs = [replace(run, config={"model": run.label}) for run in RUNS]
    text = Reader(render(runs)).text
    assert f"model=one {SAID}: ValueError" in text
    assert text.count(SAID) == 1
    assert "Accuracy over the rounds" in text


def test_numbers_that_fail_leave_those_of_other_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = report_json._study
    monkeypatch.setattr(
        report_json, "_study", lambda s: broken(s) if "one" in s.title else whole(s)
    )
    runs = [replace(run, config={"model": run.label}) for run in RUNS]
    one, two = report_json.numbers_of(runs, {})["studies"]
    assert SAID in one["problem"]
    assert one["runs"] == ["one"]
    assert len(two["families"]) == 1


def test_figures_as_files_go_on_after_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(figures, "FIGURES", BROKEN)
    (study,) = group_runs(RUNS)
    names = {path.stem for path in write_figures(study, tmp_path)}
    assert names == {path.stem for path in tmp_path.iterdir()}
    assert names
    assert "accuracy" not in names
    assert f"Accuracy over the rounds {SAID}" in caplog.text


def test_our_own_reasons_are_told_as_they_are_and_errors_that_pass_go_on() -> None:
    def full() -> str:
        raise OSError("disk full")

    def lost() -> str:
        raise DataError("no data")

    assert with_fallback("It", lost, str) == f"It {SAID}: no data"
    assert with_fallback("It", full, str) == f"It {SAID}: OSError: disk full"
    with pytest.raises(OSError, match="disk full"):
        with_fallback("It", full, str, reraise=(OSError,))
