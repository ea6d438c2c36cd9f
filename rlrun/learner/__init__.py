# SPDX-License-Identifier: Apache-2.0
"""The ranks that train the policy."""
