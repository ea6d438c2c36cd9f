# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: which are there and whole, and how the state of training is stored in them."""
