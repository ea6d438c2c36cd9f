# SPDX-License-Identifier: Apache-2.0
"""rlrun: post-train language models by GRPO."""

__version__ = "0.1.0"
