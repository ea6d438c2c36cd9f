# SPDX-License-Identifier: Apache-2.0
"""Variants of the importance-sampling correction slot."""
