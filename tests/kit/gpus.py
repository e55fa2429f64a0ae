"""GPUs of a machine that has none: a program `nvidia-smi` that prints what a test has written."""

from pathlib import Path

from gridmill.domain.amounts import MIB

_SMI = r"""#!/bin/sh
here=$(dirname "$0")
case "$*" in
*--query-gpu=mig.mode.current*) cat "$here/modes" ;;
*--query-gpu=memory.total*--id=0,1*) cat "$here/sizes" ;;
*--query-gpu=memory.total*) head -n 1 "$here/sizes" ;;
*--query-compute-apps*)
    for process in /proc/[0-9]*; do
        if grep -qaF -e "WORDS" "$process/cmdline" 2> /dev/null; then
            pid=${process#/proc/}
            echo "$pid, $(cat "$here/used-$pid" 2> /dev/null || cat "$here/used")"
        fi
    done ;;
esac
"""


class SimulatedGpus:
    """The folder of the program `nvidia-smi`, for the PATH. Processes whose command line contains
    `processes_with` use the GPU."""

    def __init__(self, folder: Path, *, processes_with: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        program = folder / "nvidia-smi"
        program.write_text(_SMI.replace("WORDS", processes_with))
        program.chmod(0o755)
        self.have(16 * 2**30, 16 * 2**30)
        self.print_mig_modes("Disabled\nDisabled\n")
        self.use(0)

    def have(self, *sizes: int) -> None:
        """Let the GPUs have this memory in bytes."""
        self.print_sizes("".join(f"{one // MIB}\n" for one in sizes))

    def print_sizes(self, text: str) -> None:
        """Let the program print this text as the memory of the GPUs."""
        self._write("sizes", text)

    def print_mig_modes(self, text: str) -> None:
        """Let the program print this text as the MIG modes of the GPUs."""
        self._write("modes", text)

    def use(self, size: int, *, only: int | None = None) -> None:
        """Let each process that uses a GPU, or only the process with this id, use this memory in bytes."""
        self._write("used" if only is None else f"used-{only}", str(size // MIB))

    def _write(self, name: str, text: str) -> None:
        draft = self.folder / f".{name}"
        draft.write_text(text)
        draft.replace(self.folder / name)
