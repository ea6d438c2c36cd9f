# SPDX-License-Identifier: Apache-2.0
"""Variants of the batching slot."""
