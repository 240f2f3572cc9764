"""``python -m gpu_checks``; ``scripts/gpu_check.sh`` calls it with everything it needs in place."""

import sys
import time

if __name__ == "__main__":
    began = time.perf_counter()  # importing torch takes of the time, too
    from gpu_checks.command import main

    sys.exit(main(sys.argv[1:], began))
