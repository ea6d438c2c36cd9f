# SPDX-License-Identifier: Apache-2.0
"""The trainers: one loop, two schedules."""
