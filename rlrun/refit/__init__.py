# SPDX-License-Identifier: Apache-2.0
"""Brings the learner's weights to engines that have weights of their own, and proves it."""
