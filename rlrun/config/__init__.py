# SPDX-License-Identifier: Apache-2.0
"""Composes, checks and explains configurations."""
