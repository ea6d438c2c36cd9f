# SPDX-License-Identifier: Apache-2.0
"""Messages to token ids and back, by the model's own chat template."""
