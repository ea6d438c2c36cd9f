# SPDX-License-Identifier: Apache-2.0
"""Generators of data rows that need no file."""
