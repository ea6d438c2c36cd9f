# SPDX-License-Identifier: Apache-2.0
"""Which way weights take, and the arguments of the ways that need GPUs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlrun.errors import ConfigError
from rlrun.refit.transfer import RefitKind, choose_refit

A, S, I, N = RefitKind.AUTO, RefitKind.SHARED_MEMORY, RefitKind.IPC, RefitKind.NCCL  # noqa: E741


def choose(kind: RefitKind, **changes: Any) -> RefitKind:
    given = {
        "on_gpu": True,
        "gpus": 1,
        "num_engines": 1,
        "tensor_parallel_size": 1,
        "concurrent": False,
    }
    return choose_refit(kind, **(given | changes))


@pytest.mark.parametrize(
    ("kind", "changes", "chosen"),
    [
        (A, {"on_gpu": False, "gpus": 0}, S),
        (A, {"on_gpu": False, "gpus": 8}, S),
        (S, {"on_gpu": False, "gpus": 0, "num_engines": 4}, S),
        (A, {}, I),
        (I, {}, I),
        (A, {"gpus": 2}, N),
        (I, {"gpus": 2}, I),
        (A, {"gpus": 8, "num_engines": 3, "tensor_parallel_size": 2}, N),
        (A, {"gpus": 2, "concurrent": True}, N),
    ],
)
def test_the_way_fits_the_devices(
    kind: RefitKind, changes: dict[str, Any], chosen: RefitKind
) -> None:
    assert choose(kind, **changes) is chosen


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (I, {"on_gpu": False}, "needs GPUs"),
        (N, {"on_gpu": False}, "needs GPUs"),
        (S, {}, "is for CPUs"),
        (N, {}, "need 2 GPUs, and there are 1"),
        (A, {"concurrent": True}, "at the same time"),
        (A, {"gpus": 2, "num_engines": 2}, "give 3 GPUs"),
        (A, {"gpus": 4, "tensor_parallel_size": 4}, "give 5 GPUs"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(
    kind: RefitKind, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        choose(kind, **changes)


def test_engines_on_gpus_of_their_own_follow_the_learners() -> None:
    nccl = pytest.importorskip("rlrun.refit.nccl", exc_type=ImportError)
    transfer = nccl.NcclTransfer(lambda: iter([]), 2)
    assert [transfer.engine_args(index)["device_ids"] for index in (0, 1)] == [[1, 2], [3, 4]]
    info = nccl.init_info(2, 1234)
    assert (info.world_size, info.master_port, info.is_sender) == (3, 1234, True)
    transfer.close()
    transfer.close()


def test_a_source_declares_what_it_yields() -> None:
    client = pytest.importorskip("rlrun.refit.vllm_client", exc_type=ImportError)
    weights = {"a": torch.zeros(2, 3).t(), "b": torch.ones(4, dtype=torch.bfloat16)}
    source = client.LearnerSource(lambda: iter(weights.items()))
    for _ in range(2):
        found = dict(source)
        assert [(m.name, m.dtype, m.shape) for m in source.metadata()] == [
            (name, tensor.dtype, tuple(tensor.shape)) for name, tensor in found.items()
        ]
        assert all(tensor.is_contiguous() for tensor in found.values())
        assert torch.equal(found["a"], weights["a"])


def test_the_client_calls_the_engine_on_its_loop_from_another_thread() -> None:
    client = pytest.importorskip("rlrun.refit.vllm_client", exc_type=ImportError)
    calls: list[tuple[str, object]] = []

    class Calls:
        async def init_weight_transfer_engine(self, request: Any) -> None:
            calls.append(("init", request.init_info))

        async def start_weight_update(self) -> None:
            calls.append(("start", asyncio.get_running_loop()))

        async def update_weights(self, request: Any) -> None:
            calls.append(("update", request.update_info))

        async def finish_weight_update(self, version: str | None) -> None:
            calls.append(("finish", version))

    async def run() -> None:
        loop = asyncio.get_running_loop()
        one = client.EngineClient(SimpleNamespace(llm=Calls()), loop)
        await asyncio.to_thread(one.init_weight_transfer_engine, {"packed": True})
        await asyncio.to_thread(one.start_weight_update)
        await asyncio.to_thread(one.update_weights, {"names": ["a"]})
        await asyncio.to_thread(one.finish_weight_update)
        assert calls == [
            ("init", {"packed": True}),
            ("start", loop),
            ("update", {"names": ["a"]}),
            ("finish", None),
        ]

    asyncio.run(run())


@pytest.mark.parametrize(("rows", "piece"), [(3, 2**30), (2**21, 2**31)])
def test_a_piece_on_a_shared_gpu_holds_the_largest_tensor(rows: int, piece: int) -> None:
    ipc = pytest.importorskip("rlrun.refit.ipc", exc_type=ImportError)
    client = pytest.importorskip("rlrun.refit.vllm_client", exc_type=ImportError)
    embeddings = torch.empty(rows, 256, device="meta")
    source = client.LearnerSource(lambda: iter([("a", torch.ones(2)), ("b", embeddings)]))
    info = ipc.init_info(source)
    assert (info.packed, info.packed_buffer_size_bytes) == (True, piece)


def test_sharing_a_gpu_lets_the_engine_sleep() -> None:
    ipc = pytest.importorskip("rlrun.refit.ipc", exc_type=ImportError)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VLLM_ALLOW_INSECURE_SERIALIZATION", raising=False)
        transfer = ipc.IpcTransfer(lambda: iter([]))
        args = transfer.engine_args(0)
        patch.delenv("VLLM_ALLOW_INSECURE_SERIALIZATION")
    assert transfer.colocated
    assert args["enable_sleep_mode"] and args["device_ids"] == [0]
