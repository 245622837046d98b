"""The server learns what kind of error a client had, not what the error quotes."""

from errno import EACCES, ENOSPC

import pytest

from client_app.error_text import LOCATION, error_text, without_paths
from common.errors import ClientError, DataError, FedError

REMOTE = {"watchdog": True, "data": "/srv/pictures/John Smith, ward 3"}
PATH = "/srv/pictures/John Smith, ward 3/scan of Mary Jones.jpg"


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"cannot decode {PATH}"),
        KeyError(PATH),
        RuntimeError(f"DataLoader worker failed\n{PATH}"),
        FileNotFoundError(2, "No such file or directory", PATH),
        OSError(PATH),
        UnicodeDecodeError("utf-8", PATH.encode(), 0, 1, PATH),
    ],
)
@pytest.mark.parametrize("node_config", [REMOTE, {"partition-id": 1}])
def test_an_unexpected_exception_sends_its_type_only(
    error: Exception, node_config: dict[str, object]
) -> None:
    text = error_text(error, node_config)
    assert text.startswith(type(error).__name__)
    assert text.endswith("the client's own log has the details")
    for word in ("John", "Mary", "ward 3", "srv", "\n"):
        assert word not in text


def test_a_full_disk_and_a_missing_right_are_still_named() -> None:
    assert "No space left on device" in error_text(OSError(ENOSPC, "full", PATH), REMOTE)
    assert "Permission denied" in error_text(PermissionError(EACCES, "no", PATH), REMOTE)


@pytest.mark.parametrize(
    "text",
    [
        PATH,
        f"{PATH} is damaged: 12 bytes",
        f"{PATH} cannot be read: [Errno 13] Permission denied: '{PATH}'",
        f'no images in "{PATH}"; put some there',
        f"expected {PATH}/train/<class>/<file> and {PATH}/test/<class>/<file>",
        f"digits is not on disk; put a.gz into {PATH}",
    ],
)
def test_our_own_errors_lose_their_paths_on_the_way_to_the_server(text: str) -> None:
    for error in (DataError(text), ClientError(text), FedError(text)):
        told = error_text(error, REMOTE)
        assert LOCATION in told
        for word in ("John", "Mary", "ward 3", "srv"):
            assert word not in told
        assert error_text(error, {"partition-id": 0}) == text


def test_texts_without_paths_stay_as_they_are() -> None:
    for text in ("3 of 4 images/s", "see https://example.org/a/b", "K/N and 1/3", "a\nb: no GPU"):
        assert without_paths(text) == text


def test_a_missing_folder_is_named_on_the_client_only() -> None:
    problem = "the folder of images is missing or is no folder"
    error = DataError(f"{problem}\nexpected {PATH}/train/<class>/<file>")
    assert error_text(error, REMOTE) == problem
