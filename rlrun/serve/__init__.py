# SPDX-License-Identifier: Apache-2.0
"""The OpenAI-compatible HTTP server in front of the generation slot."""
