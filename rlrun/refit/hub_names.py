# SPDX-License-Identifier: Apache-2.0
"""Weights under the names and in the shapes that they have in files, which is what engines load.

transformers renames and joins parameters when it reads a model (the experts of a layer become one
tensor) and undoes it when it saves one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from rlrun.interfaces import Weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LAYER = re.compile(r".*?\.\d+\.|")


def with_hub_names(model: PreTrainedModel, weights: Weights) -> Weights:
    """The same weights as ``save_pretrained`` of the model would write them, layer by layer.

    Args:
        model: Whose parameters they are; only its names are looked at.
        weights: Under the names of the model's parameters.
    """

    def renamed() -> Iterator[tuple[str, Tensor]]:
        # A layer at a time: what is split or joined is copied, and never the whole model at once.
        for _, layer in groupby(weights(), key=_layer):
            for name, tensor in revert_weight_conversion(model, dict(layer)).items():
                yield name, tensor.contiguous()

    return renamed


def _layer(named: tuple[str, Tensor]) -> str:
    found = _LAYER.match(named[0])
    return found.group() if found is not None else ""
