# SPDX-License-Identifier: Apache-2.0
"""Validation, `rlrun eval` and `rlrun score`: how right a policy's responses are."""
