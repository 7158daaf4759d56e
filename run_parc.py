"""Run PARC: motions from a generator, corrected by a tracker, fed back to both.

The script that users start, submit to a cluster (``ray job submit ... -- python run_parc.py``) and
kill and start again. It takes a recipe, the usual options and any config value by dotted name:

    python run_parc.py --recipe quick --data DIR --storage runs --name first --iterations 2
"""

from __future__ import annotations

import sys

from parc_ray.cli import guarded, run_command


def main() -> None:
    """Run or continue the loop; exit codes as ``parc``: 0 done, 2 wrong input, 1 else."""
    sys.exit(guarded(lambda: run_command(sys.argv[1:], prog="run_parc.py")))


if __name__ == "__main__":
    main()
