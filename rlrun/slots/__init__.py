# SPDX-License-Identifier: Apache-2.0
"""The contracts of the slots, by subject; ``rlrun.interfaces`` has all of them."""
