"""A GPU is never silently left out: the client says where it trains, and why."""

import pytest
import torch

from client_app.device import choose_device, why_no_gpu
from common.errors import ClientError


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H200")


@pytest.mark.usefixtures("a_gpu")
def test_a_gpu_is_used_unless_the_cpu_was_asked_for() -> None:
    assert choose_device("auto").name == choose_device("cuda").name == "cuda"
    assert choose_device("auto").description == "trains on the GPU H200"
    assert choose_device("cpu").description == "trains on the CPU, as asked"


# A public report of this bug: https://github.com/flwrlabs/flower/issues/6220
@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_the_reason_is_given_or_the_client_refuses() -> None:
    assert choose_device("auto").name == "cpu"
    assert choose_device("auto").description == f"trains on the CPU: {why_no_gpu()}"
    with pytest.raises(ClientError, match=r"train\.device is cuda, but this client sees no GPU"):
        choose_device("cuda")


@pytest.mark.parametrize(
    ("built", "visible", "said"),
    [(None, None, "built without CUDA"), ("12.4", "", "--client-gpus"), ("12.4", None, "driver")],
)
def test_the_likeliest_reason_is_named(
    built: str | None, visible: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert said in why_no_gpu()
