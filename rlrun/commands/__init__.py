# SPDX-License-Identifier: Apache-2.0
"""Commands with many options, a file for each subject; cli.py has the others."""
