# SPDX-License-Identifier: Apache-2.0
"""Where metrics go beside metrics.jsonl. The only place that knows TensorBoard's library."""
