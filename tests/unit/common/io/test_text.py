"""Texts from other machines: bounded, printable, and on one line."""

import io
import logging

from hypothesis import given
from hypothesis import strategies as st

from common.io.text import (
    LONGEST,
    LONGEST_LINE,
    log_single_lines,
    name_list,
    single_line,
)

ESCAPES = "\x1b]0;owned\x07\x1b[2Jward\r\n2026-12-01 WARNING ward-a is revoked\u202e\ud800"


@given(st.text())
def test_a_single_line_is_printable_and_bounded(text: str) -> None:
    line = single_line(text)
    assert line.isprintable()
    assert len(line) <= LONGEST + len(" ...")
    if text.isprintable() and len(text) <= LONGEST:
        assert line == text


def test_a_list_of_many_names_counts_the_rest() -> None:
    assert name_list([]) == ""
    assert name_list("ab") == "a, b"
    shown = name_list([ESCAPES, *(f"name{k}" for k in range(100_000))])
    assert shown.endswith("name3 and 99996 more")
    assert shown.isprintable()


def test_the_log_has_one_line_per_message_whatever_a_message_quotes() -> None:
    stream = io.StringIO()
    logger = logging.Logger("test")
    logger.addHandler(logging.StreamHandler(stream))
    log_single_lines(logger)
    log_single_lines(logger)
    assert len(logger.filters) == 1
    logger.warning("client %s dropped: %s", "ward-b", ESCAPES)
    logger.warning("100 %")
    logger.warning("x" * 60_000)
    try:
        raise ValueError(ESCAPES)
    except ValueError:
        logger.exception("failed")
    lines = stream.getvalue().split("\n")
    assert all(line.isprintable() for line in lines)
    assert lines[0].startswith("client ward-b dropped: ")
    assert lines[1] == "100 %"
    assert len(lines[2]) == LONGEST_LINE + len(" ...")
    assert lines[3] == "failed"
    assert all(line.startswith("    ") for line in lines[4:-1])
