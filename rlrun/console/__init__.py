# SPDX-License-Identifier: Apache-2.0
"""What a person sees of a run in the terminal, and its curves."""
