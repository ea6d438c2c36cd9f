# SPDX-License-Identifier: Apache-2.0
"""rlrun: post-train language models by GRPO, from a laptop CPU to a GPU cluster."""

__version__ = "0.1.0"
