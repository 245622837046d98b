"""Run a test for many values as one case."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

Test = Callable[..., None]


def for_each(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test for each value as one case; a failure names the values.

    It takes the arguments of `pytest.mark.parametrize`. Use it where the cases are many, quick and
    alike. Fixtures live through all values, so a test that changes one is parametrised instead.
    """
    keys = [names] if isinstance(names, str) else [*names]
    rows = [(value,) if isinstance(names, str) else tuple(value) for value in values]
    assert rows, f"no values for {names}"

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            for row in rows:
                given = dict(zip(keys, row, strict=True))
                try:
                    test(*args, **fixtures, **given)
                except BaseException as error:
                    error.add_note(f"with {given}")
                    raise

        left = [part for name, part in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate
