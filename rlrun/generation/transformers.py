# SPDX-License-Identifier: Apache-2.0
"""generation=transformers: samples with the learner's network, or with a copy in a process."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.interfaces import (
    Generation,
    Generator,
    GeneratorInputs,
    Precision,
    component,
    setting,
)


@component("generation/transformers")
@dataclass(kw_only=True, slots=True)
class TransformersGeneration(Generation):
    """Batches on a transformers model, which may be the one that is being trained."""

    max_batch_size: int | None = setting(ge=1)

    async def start(self, inputs: GeneratorInputs) -> Generator:
        """Samples from the learner's network where it is, or from a copy in another process.

        In turns with the learner no copy is needed: an update is seen by the next batch. Beside it
        the generator has weights of its own.
        """
        import torch

        if inputs.concurrent:
            return self._process(inputs)

        from rlrun.generation.continuous import ContinuousGenerator
        from rlrun.generation.continuous_batch import ContinuousBatch
        from rlrun.generation.sampler import Sampler
        from rlrun.generation.static import StaticGenerator
        from rlrun.generation.static_batch import StaticBatches

        autocast = torch.bfloat16 if inputs.policy.precision is Precision.BFLOAT16 else None
        sampler = Sampler(inputs.model, inputs.renderer, autocast)
        if inputs.ordered:
            return StaticGenerator(StaticBatches(sampler, self.max_batch_size))
        return ContinuousGenerator(ContinuousBatch(sampler, self.max_batch_size))

    def _process(self, inputs: GeneratorInputs) -> Generator:
        from rlrun.generation.process import ProcessGenerator
        from rlrun.generation.process_pipe import StartUp

        start_up = StartUp(
            policy=inputs.policy,
            max_batch_size=self.max_batch_size,
            ordered=inputs.ordered,
            recompute_kv_cache=inputs.recompute_kv_cache,
            deterministic=inputs.deterministic,
            num_threads=inputs.num_threads,
            device=inputs.model.device.type,
        )
        return ProcessGenerator(start_up, inputs)
