# SPDX-License-Identifier: Apache-2.0
"""The engine's end of a refit, imported by vLLM in each of its worker processes and nowhere else.

Importing it prepares the process: its output goes to the engine's log, it ends when the process
that started it is gone, and on a CPU linear layers and experts are not packed. vLLM packs them at
load into another layout. From that of linear layers it goes on computing after the weights
themselves have been replaced, and the experts' it takes for what replaced them: no error, and
log-probs of no weights that the learner ever had.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from vllm import _custom_ops
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.model_executor.layers import utils as linear_layers
from vllm.platforms import current_platform

from rlrun.generation.vllm_folder import kept_elsewhere
from rlrun.refit.vllm_receiver import BACKEND, SharedMemoryEngine

LOG_VARIABLE = "RLRUN_ENGINE_LOG"
DRIVER_VARIABLE = "RLRUN_DRIVER"
PARENT_POLL_S = 1.0


class Extension:
    """Mixed into vLLM's worker: naming this class makes vLLM import this module.

    Attributes:
        distributed_init_method: Of the worker itself: where it meets the others.
    """

    distributed_init_method: str

    def rlrun_process(self) -> int:
        """The id of the worker's process."""
        return os.getpid()

    def rlrun_kept_elsewhere(self) -> list[str]:
        """See ``kept_elsewhere``."""
        return kept_elsewhere(self.distributed_init_method)


def _log_to_file() -> None:
    """What libraries print, and the trace of a crash, belongs into the log, not on the console."""
    fd = os.open(os.environ[LOG_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _end_with_driver() -> None:
    """Starts a thread that ends this process once the run is gone, however that ended.

    With several workers their parent is the engine's own process, which would stay as well.
    """
    parent, driver = os.getppid(), int(os.environ[DRIVER_VARIABLE])

    def watch() -> None:
        while os.getppid() == parent and (parent == driver or Path(f"/proc/{driver}").exists()):
            time.sleep(PARENT_POLL_S)
        if os.getppid() == parent and _is_of_run(parent, driver):
            os.kill(parent, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end-with-driver").start()


def _is_of_run(process: int, driver: int) -> bool:
    """Whether a process was started by the run, rather than one that took over its orphans."""
    try:
        environment = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return False
    return f"{DRIVER_VARIABLE}={driver}".encode() in environment.split(b"\0")


def _keep_linear_layers_plain() -> None:
    """Makes vLLM fall back to torch's own linear layer, which reads the parameter itself."""
    linear_layers.check_cpu_sgl_kernel = lambda n, k, dtype: False
    _custom_ops._supports_onednn = False


def _prepare() -> None:
    _log_to_file()
    _end_with_driver()
    if current_platform.is_cpu():
        # Not at the top: vLLM's own for CPUs are not there in the one for GPUs.
        from rlrun.refit.vllm_experts import use_plain_experts

        _keep_linear_layers_plain()
        use_plain_experts()
    WeightTransferEngineFactory.register_engine(BACKEND, SharedMemoryEngine)


_prepare()
