# SPDX-License-Identifier: Apache-2.0
"""How new weights get from the learner to a generator; both ends of a wire in one file."""
