"""What nvidia-smi says about the GPU of a profile."""

from types import SimpleNamespace

import pytest
import torch

from sequoia_core.measuring.step_rounds import describe_installation
from sequoia_core.models.device import GPU_QUERIES, describe_gpu, gpu_record
from sequoia_core.models.threads import TimedLoad

QUESTION = (
    "--id=GPU-1f-2e --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,power.limit "
    "--format=csv,noheader,nounits"
)
LINE = "NVIDIA H200, 570.133.20, 345, 1980, 3201, 3201, 700.00"
RECORD = dict(zip(GPU_QUERIES, ("NVIDIA H200", "570.133.20", 345, 1980, 3201, 3201, 700), strict=True))
PHRASE = "driver 570.133.20, SM clock 345 MHz, at most 1980, memory clock 3201 MHz, at most 3201, power limit 700 W"
UNKNOWN = LINE.replace("345", "[N/A]").replace("700.00", "[Unknown Error]")
ANSWERS = {
    f"echo {LINE}": RECORD,
    f"echo '{UNKNOWN}'": {name: RECORD[name] for name in GPU_QUERIES if name not in ("sm_mhz", "power_limit_watts")},
    f"echo {LINE}; exit 9": {},
    "echo Failed": {},
    None: {},
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_profile_records_the_gpu_as_far_as_known(answer, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="1f-2e"))
    if answer is not None:
        script = tmp_path / "nvidia-smi"
        script.write_text(f'#!/bin/sh\n[ "$*" = "{QUESTION}" ] || exit 1\n{answer}\n')
        script.chmod(0o755)
    target = SimpleNamespace(backend="transformers", device=torch.device("cuda", 0))
    assert describe_installation(target, TimedLoad())["gpu"] == gpu_record(0) == ANSWERS[answer]


def test_only_a_record_is_described():
    assert describe_gpu(RECORD | {"sm_mhz": 345.0}) == PHRASE
    assert describe_gpu({"driver": "1" * 99}) == "driver " + "1" * 40
    assert describe_gpu(None) == describe_gpu({"other": 1}) == ""
