"""The page says what the runs say, needs nothing else, and believes no name."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from common.config import parse
from common.errors import ConfigError
from common.runs.class_counts import PARTITION
from common.runs.outcome import Outcome, write_outcome
from common.runs.records import RECORDS, Recorder
from deploy.report.figures import FIGURES
from deploy.report.html import page
from deploy.report.html.page import render
from deploy.report.html.parts import Cell, Part, TableData, cells
from deploy.report.report_files import write_report
from deploy.report.run_data import RunData
from server_app.run_dir.run_dir import RunDir
from tests.unit.deploy.report.test_figures import full_run, made_up
from tests.unit.deploy.report.test_run_summary import NOTHING, UNEVALUATED, evaluation_of, record

EVIL = '<script>alert("1")</script><img src=x onerror=alert(1)>'


class Reader(HTMLParser):
    """What a browser would see: the elements, what they load, and the words outside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag
        for name, value in attrs:
            self.ids += [value or ""] if name == "id" else []
            self.links += [value or ""] if name == "href" else []
            self.loads += [value or ""] if name in ("src", "srcset", "data", "action") else []
            assert not name.startswith("on")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def with_config(run: RunData, **flat: object) -> RunData:
    return replace(run, config=parse(flat).to_flat())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunData]:
    folder = tmp_path_factory.mktemp("runs")
    return [
        full_run(folder, f"{method}-{seed}", shift=shift, method=method, seed=seed)
        for method, shift in (("fedavg", 0.0), ("fedpcd", 0.3))
        for seed in (1, 2)
    ]


@pytest.fixture(scope="module")
def text(runs: list[RunData]) -> str:
    found = render(runs)
    assert "cannot be drawn" not in found
    return found


@pytest.fixture(scope="module")
def report(text: str) -> Reader:
    return Reader(text)


def test_the_page_needs_nothing_from_elsewhere(text: str, report: Reader) -> None:
    assert report.loads == []
    assert all(link.startswith("#") for link in report.links)
    namespace = "http://www.w3.org/2000/svg"  # a name, which nothing is fetched from
    assert not re.findall(r"https?://|@import|url\((?!#)", text.replace(namespace, ""))
    assert "link" not in report.tags
    assert "default-src 'none'" in text
    assert "connect-src" not in text
    assert "connect-src 'self'" in render([], live=True)


def test_no_two_elements_share_an_id_and_every_link_leads_somewhere(report: Reader) -> None:
    assert len(report.ids) == len(set(report.ids))
    assert {link[1:] for link in report.links} <= set(report.ids)


def test_the_same_runs_give_the_same_bytes() -> None:
    runs = [made_up("one", 20), made_up("two", 20)]
    assert render(runs) == render(runs)


def test_it_says_who_is_best_by_how_much_and_how_soon(report: Reader) -> None:
    assert "fedavg" in report.text
    assert re.search(r"mean accuracy \d+\.\d % fedpcd \+\d+\.\d points to fedavg", report.text)
    assert re.search(
        r"fastest to the final accuracy of fedavg round \d fedpcd of 4 rounds, \d\.\dx", report.text
    )
    for title in (
        "Difference to the reference",
        "Clients with the lowest accuracy",
        "Exact settings",
    ):
        assert title in report.text


def test_it_names_who_was_dropped_how_often_and_why(report: Reader) -> None:
    assert re.search(r"7 fedavg 1 1 2 weights hold a NaN", report.text)


def test_the_worst_served_clients_come_first_with_their_samples() -> None:
    one = RunData("x", (record(1, evaluation_of(90, 20, 95, 40, 99, 98, 97)),))
    text = Reader(render([one])).text
    assert re.search(r"1 20\.0 % of 100 3 40\.0 % of 100 0", text)


@pytest.mark.parametrize("where", ["label", "client", "reason", "class", "title", "left out"])
def test_a_name_is_never_read_as_html(tmp_path: Path, where: str) -> None:
    run = made_up("plain", 3)
    if where == "label":
        run = replace(run, label=EVIL)
    elif where in ("client", "reason"):
        bad = record(7, dropped={EVIL: "late"} if where == "client" else {"0": EVIL})
        run = replace(run, records=(*run.records, bad))
    elif where == "class":
        run = replace(run, path=tmp_path)
        split = {"classes": ["a", EVIL], "clients": {EVIL: [9, 1]}}
        (tmp_path / PARTITION).write_text(json.dumps(split))
    left_out = {EVIL: EVIL} if where == "left out" else {}
    text = render([run], title=EVIL if where == "title" else "t", left_out=left_out)
    assert "<script>alert" not in text
    assert "<img" not in text
    assert Reader(text).tags.count("script") == 2


@pytest.mark.parametrize("runs", [[], [NOTHING], [UNEVALUATED], [NOTHING, made_up("a", 4)]])
def test_runs_that_have_just_begun_are_no_error(runs: list[RunData]) -> None:
    text = Reader(render(runs)).text
    assert "nan" not in text.lower().replace("nan:", "")
    assert ("There are no runs yet." in text) == (not runs)
    assert ("Nothing has been evaluated yet." in text) == (len(runs) == 1)


def test_a_run_that_failed_or_goes_on_is_told(tmp_path: Path) -> None:
    config = parse({"out": str(tmp_path), "name": "x", "rounds": 9})
    path = RunDir.open(config).path
    Recorder(path / RECORDS).append(record(3, evaluation_of(50, 60)))
    write_outcome(path, Outcome("failed", "<no> clients", 3, 1.0))
    write_report([tmp_path], tmp_path / "r.html")
    text = Reader((tmp_path / "r.html").read_text()).text
    assert "failed after round 3: <no> clients" in text
    assert "1 not finished (the slowest is at round 3 of 9)" in text


def test_many_studies_have_their_tables_and_two_figures_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "ALL_FIGURES", 1)
    runs = [with_config(made_up("x", 3), method=method, clients=clients)
            for clients in (4, 5) for method in ("fedavg", "fedpcd")]  # fmt: skip
    text = render(runs)
    assert text.count('class="study"') == 2
    assert text.count("<figcaption>") == 2 * 2
    assert "There are 2 studies" in text


def simple_run(folder: Path, name: str) -> None:
    path = RunDir.open(parse({"out": str(folder), "name": name, "method": "fedavg"})).path
    Recorder(path / RECORDS).append(record(4, evaluation_of(50, 60)))


def test_a_broken_run_is_named_and_left_out(tmp_path: Path) -> None:
    simple_run(tmp_path, "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / RECORDS).write_text("no record\n")
    paths, left_out = write_report([tmp_path], tmp_path / "out" / "r.html", tmp_path / "figures")
    assert list(left_out) == [str(tmp_path / "bad")]
    assert "bad is left out:" in paths[0].read_text()
    assert {path.suffix for path in paths} == {".html", ".json", ".png", ".svg"}
    assert all(path.stat().st_size for path in paths)
    told = json.loads(paths[1].read_text())
    (family,) = told["studies"][0]["families"]
    assert family["round"] == 4
    assert family["mean"] == {"mean": 0.55, "low": 0.55, "high": 0.55, "seeds": 1}
    assert family["difference_to_reference"] == {"mean": None, "worst10": None}
    with pytest.raises(ConfigError, match="no run can be read"):
        write_report([tmp_path / "bad"], tmp_path / "r.html")


def test_numbers_cannot_take_the_place_of_the_page(tmp_path: Path) -> None:
    simple_run(tmp_path, "x")
    with pytest.raises(ConfigError, match="another ending"):
        write_report([tmp_path], tmp_path / "r.json")


def test_a_page_cannot_be_a_folder_nor_its_figures_go_to_a_file(tmp_path: Path) -> None:
    simple_run(tmp_path, "run")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"a folder; give a file, as .*/report\.html"):
        write_report([tmp_path], tmp_path)
    with pytest.raises(ConfigError, match="a file; give a folder"):
        write_report([tmp_path], tmp_path / "r.html", tmp_path / "file")
    assert not (tmp_path / "r.html").exists()


def rendered(template: str, **values: object) -> str:
    return page.environment().from_string(template).render(**values)


def test_values_are_printable_and_escaped_once() -> None:
    assert rendered("{{ x }}", x="<a&>") == "&lt;a&amp;&gt;"
    assert rendered("<b>{{ x }}</b>", x=Markup("<i>")) == "<b><i></b>"
    assert rendered('<i class="{{ x }}">', x='"x"') == '<i class="&#34;x&#34;">'
    assert rendered("{{ x }}", x="a\x00\ud800\nb") == "a\ufffd\ufffd b"
    with pytest.raises(UndefinedError):
        rendered("{{ x }}")


def test_table_cells_are_escaped_and_a_table_without_rows_is_left_out() -> None:
    macros = '{% from "macros.html" import titled_table %}{{ titled_table("T", made) }}'
    table = TableData(["a", "b"], [cells("x", Cell("<", "b", small="&", swatch=2))])
    text = rendered(macros, made=Part(table))
    assert '<th scope="row">x</th>' in text
    assert '<td><i class="swatch swatch-2"></i><b>&lt;</b><small>&amp;</small></td>' in text
    assert rendered(macros, made=Part(TableData(["a"], []))).strip() == ""
    assert '<p class="note">why</p>' in rendered(macros, made=Part(None, "why"))


def test_every_caption_is_short_and_every_name_a_plain_word() -> None:
    for picture in FIGURES:
        assert re.fullmatch(r"[a-z0-9-]+", picture.name)
        assert len(picture.caption) < 260
