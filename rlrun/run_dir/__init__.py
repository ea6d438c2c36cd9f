# SPDX-License-Identifier: Apache-2.0
"""The run directory: who may write there, what lies in it, how it is read again."""
