"""Findings of checks, and how they are printed."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

Verdict: TypeAlias = Literal["ok", "note", "problem"]
INSTALL = "pip install fedkeel, in this environment"
STYLES: Mapping[Verdict, str] = {"ok": "green", "note": "yellow", "problem": "bold red"}


@dataclass(frozen=True)
class Finding:
    """One thing found: what about, how bad, in plain words, and what to do (or "")."""

    topic: str
    verdict: Verdict
    sentence: str
    remedy: str = ""


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if something must be mended, else 0."""
    return int(any(finding.verdict == "problem" for finding in findings))


def print_findings(
    console: Console, findings: Sequence[Finding], ready: str = "Ready to run."
) -> None:
    """Print the findings as a table, the remedy under each sentence, and `ready` if all is well."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        sentence = Text(finding.sentence)
        if finding.remedy:
            sentence.append(f"\n-> {finding.remedy}", style="italic")
        table.add_row(Text(finding.verdict, STYLES[finding.verdict]), Text(finding.topic), sentence)
    console.print(table)
    problems = sum(finding.verdict == "problem" for finding in findings)
    plural = "" if problems == 1 else "s"
    console.print(f"{problems} problem{plural} to mend" if problems else ready)


def run_check(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """A doctor must not fall ill himself: what a check raises becomes a finding."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(check())
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError)
        failed = f"cannot tell: {error}" if missing else f"the check itself failed: {error!r}"
        remedy = INSTALL if missing else "report this, with this output"
        topic = check.__name__.removeprefix("check_").replace("_", " ")
        return [Finding(topic, "problem", failed, remedy)]
