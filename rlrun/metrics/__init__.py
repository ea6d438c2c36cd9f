# SPDX-License-Identifier: Apache-2.0
"""What is measured: every metric declared, where its values go, and what waited for what."""
