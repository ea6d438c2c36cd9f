# SPDX-License-Identifier: Apache-2.0
"""The commands, a file for each subject; cli.py puts them together."""
