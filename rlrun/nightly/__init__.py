# SPDX-License-Identifier: Apache-2.0
"""``rlrun nightly``: recipes are run, what they promise is asserted, and the numbers are kept."""
