# SPDX-License-Identifier: Apache-2.0
"""From the name of a model, or of a run, to a folder, a tokenizer and weights; and out again."""
