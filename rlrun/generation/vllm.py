# SPDX-License-Identifier: Apache-2.0
"""generation=vllm: samples with vLLM engines, in processes and with weights of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlrun.console.counted import counted
from rlrun.errors import ConfigError, NotInstalled, Problem
from rlrun.generation.vllm_args import default_args, is_installed, wrong_kwargs
from rlrun.interfaces import Generation, GeneratorInputs, Precision, component, setting
from rlrun.models.resolve import resolve_model
from rlrun.refit.probe import Proof
from rlrun.refit.transfer import RefitKind, choose_refit

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rlrun.generation.vllm_generator import VLLMGenerator
    from rlrun.refit.transfer import Transfer

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 2.0
"""vLLM raises lower ones to the first without an error, and refuses those above the second."""

EXTENSION = "rlrun.refit.vllm_worker.Extension"


LAST_PORT = 65535


@component("generation/vllm")
@dataclass(kw_only=True, slots=True)
class VLLMGeneration(Generation):
    """vLLM engines: continuous batching, prefix sharing, weights replaced while requests run."""

    num_engines: int = setting(ge=1)
    tensor_parallel_size: int = setting(ge=1)
    request_timeout_s: float | None = setting(gt=0)
    refit: RefitKind
    vllm_kwargs: dict[str, Any]

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """What vLLM would change silently, and arguments that it does not have or rlrun gives."""
        # Not super(): a dataclass with slots is a class of its own, which super() does not know.
        yield from Generation.problems(self)
        for name, value in (
            ("temperature", self.temperature),
            ("val_temperature", self.val_temperature),
        ):
            if value is not None and not MIN_TEMPERATURE <= value <= MAX_TEMPERATURE and value != 0:
                yield (
                    (name,),
                    f"{name}={value} is beyond what vLLM samples at",
                    f"Give {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}, or generation=transformers",
                )
        if len(set(self.stop)) < len(self.stop):
            yield ("stop",), "stop names a text twice", "Name each once"
        last = self.http.port + self.num_engines - 1
        if self.expose_http_server and self.http.port and last > LAST_PORT:
            yield (
                ("http.port", "num_engines"),
                f"http.port={self.http.port} with num_engines={self.num_engines} needs ports up to "
                f"{last}, and {LAST_PORT} is the last one",
                f"Give http.port at most {LAST_PORT + 1 - self.num_engines}, or 0 for free ports",
            )
        for what, remedy in wrong_kwargs(self.vllm_kwargs):
            yield ("vllm_kwargs",), what, remedy

    def check_installed(self) -> None:
        """See ``Generation.check_installed``."""
        if not is_installed():
            key = "generation"
            what = "generation=vllm needs the package vllm, which is not installed"
            remedy = (
                "In a checkout without a GPU: make vllm; with one: pip install 'rlrun[vllm]'; or "
                "write generation=transformers"
            )
            raise NotInstalled([Problem(key, what, remedy, (key,))])

    def announcement(self, inputs: GeneratorInputs) -> str:
        """See ``Generation.announcement``."""
        engines = counted(self.num_engines, "vLLM engine")
        device = "cpu" if _on_cpu(inputs) else "cuda"
        folder = "a temporary folder" if inputs.folder is None else str(inputs.folder)
        return (
            f"generation by {engines} (tensor parallel {self.tensor_parallel_size}) on {device}, "
            f"weights by {self._refit_kind(inputs)}; they take a while to start and log to "
            f"vllm.log in {folder}"
        )

    async def start(self, inputs: GeneratorInputs) -> VLLMGenerator:
        """Starts the engines; half a minute on a CPU."""
        from rlrun.generation.vllm_log import EngineLog, environment

        self.check_installed()
        kind = self._refit_kind(inputs)
        engine_log = EngineLog(inputs.folder)
        # vLLM reads its logging configuration when it is imported.
        with engine_log.capture(), environment(engine_log.environment):
            from rlrun.generation.vllm_engine import Engine
            from rlrun.generation.vllm_generator import VLLMGenerator

            transfer = self._transfer(kind, inputs)
        args = self.engine_args(inputs, colocated=transfer.colocated)
        variables = self._variables(inputs) | engine_log.environment
        engines = [
            Engine(
                f"engine {index} of {self.num_engines}",
                {**args, **transfer.engine_args(index)},
                variables,
                engine_log,
                inputs.renderer.eos_ids,
            )
            for index in range(self.num_engines)
        ]
        generator = VLLMGenerator(
            engines,
            transfer,
            context=inputs.policy.max_total_sequence_length,
            request_timeout_s=self.request_timeout_s,
            recompute_kv_cache=inputs.recompute_kv_cache,
            # In shared memory the last weights stay as they were, whatever the learner does.
            restart_at_once=kind is RefitKind.SHARED_MEMORY or not inputs.concurrent,
            proof=Proof(inputs.policy.precision),
            on_close=engine_log.remove_temporary,
        )
        with engine_log.capture():
            await generator.open()
        return generator

    def engine_args(self, inputs: GeneratorInputs, *, colocated: bool) -> dict[str, Any]:
        """Arguments of every engine, those of the way of the weights apart."""
        policy = inputs.policy
        on_cpu = _on_cpu(inputs)
        if on_cpu and self.vllm_kwargs.get("enable_chunked_prefill"):
            key = "generation.vllm_kwargs"
            what = f"{key}.enable_chunked_prefill=true ends vLLM's engine on a CPU"
            why = "Remove it: vLLM cannot seed a request there whose prompt is read in pieces"
            raise ConfigError([Problem(key, what, why, (key,))])
        return {
            **default_args(
                on_cpu=on_cpu, colocated=colocated, state_space=_has_states(inputs.model)
            ),
            **self.vllm_kwargs,
            "model": resolve_model(policy.model),
            "tokenizer": inputs.renderer.tokenizer.name_or_path,
            "dtype": "bfloat16" if policy.precision is Precision.BFLOAT16 else "float32",
            "max_model_len": policy.max_total_sequence_length,
            "tensor_parallel_size": self.tensor_parallel_size,
            "distributed_executor_backend": "uni" if self.tensor_parallel_size == 1 else "mp",
            "worker_extension_cls": EXTENSION,
            # Of the distribution that is sampled from: temperature and filters applied.
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "seed": 0,
        }

    def _refit_kind(self, inputs: GeneratorInputs) -> RefitKind:
        import torch

        return choose_refit(
            self.refit,
            on_gpu=inputs.model.device.type == "cuda",
            gpus=torch.cuda.device_count(),
            num_engines=self.num_engines,
            tensor_parallel_size=self.tensor_parallel_size,
            concurrent=inputs.concurrent,
        )

    def _transfer(self, kind: RefitKind, inputs: GeneratorInputs) -> Transfer:
        from rlrun.refit.hub_names import with_hub_names

        weights = with_hub_names(inputs.model, inputs.weights)
        if kind is RefitKind.SHARED_MEMORY:
            from rlrun.refit.cpu import SharedMemoryTransfer

            return SharedMemoryTransfer(weights)
        if kind is RefitKind.IPC:
            from rlrun.refit.ipc import IpcTransfer

            return IpcTransfer(weights)
        from rlrun.refit.nccl import NcclTransfer

        return NcclTransfer(weights, self.tensor_parallel_size)

    def _variables(self, inputs: GeneratorInputs) -> dict[str, str]:
        """Environment of the engines' processes."""
        variables = {"VLLM_NO_USAGE_STATS": "1"}
        if _on_cpu(inputs):
            # One core is left to this process, which handles every token as well.
            workers = self.num_engines * self.tensor_parallel_size
            cores = inputs.num_threads if inputs.concurrent else inputs.num_threads - 1
            threads = cores // workers
            variables["OMP_NUM_THREADS"] = str(max(1, threads))
            if self.tensor_parallel_size == 1:
                # Lets the one worker be the engine's own process, which saves a hop per token.
                variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
            else:
                # By itself vLLM wants a memory node of the machine for every worker.
                variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        return variables


def _has_states(model: PreTrainedModel) -> bool:
    """Whether there are state-space layers in a model."""
    return any("Mamba" in type(module).__name__ for module in model.modules())


def _on_cpu(inputs: GeneratorInputs) -> bool:
    """Whether engines run on CPUs."""
    return inputs.model.device.type == "cpu" and not inputs.engines_on_gpu
