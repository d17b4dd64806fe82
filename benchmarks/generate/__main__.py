"""Make the embeddings and lists of a benchmark at full size, with known truth.

python -m benchmarks.generate ijb-c DIR        # or ijb-b, megaface
python -m benchmarks.generate megaface DIR --scale 0.01 --dim 64 --seed 1
"""

import argparse
import sys
from pathlib import Path

from benchmarks.generate.ijb import IJBB, IJBC, generate_ijb
from benchmarks.generate.megaface import generate_megaface
from sphereface2.cli.console import Watch, console
from sphereface2.cli.generate import made_beside

KINDS = ("ijb-b", "ijb-c", "megaface")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.generate", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("output", type=Path, metavar="DIR", help="the folder to write")
    parser.add_argument("--scale", type=float, default=1.0, help="1 is the official size")
    parser.add_argument("--dim", type=int, default=512, help="dimensions of the embeddings")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other people")
    asked = parser.parse_args()
    if not 0 < asked.scale <= 100 or asked.dim < 3 or asked.seed < 0:
        parser.error("--scale must be above 0, --dim at least 3 and --seed not negative")
    options = {"scale": asked.scale, "dim": asked.dim, "seed": asked.seed}
    screen = console()
    try:
        with made_beside(asked.output) as root, Watch(screen)(f"making {asked.kind}") as progress:
            if asked.kind == "megaface":
                generate_megaface(root, progress=progress, **options)
            else:
                sizes = IJBB if asked.kind == "ijb-b" else IJBC
                generate_ijb(root, sizes=sizes, progress=progress, **options)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    use = f"evaluate --embeddings {asked.output} --protocol megaface"
    if asked.kind != "megaface":
        file = asked.output / "embeddings.npy"
        use = f"evaluate --embeddings {file} --protocol {asked.kind} --root {asked.output}"
    print(f"next: sphereface2 {use}", file=sys.stderr)


if __name__ == "__main__":
    main()
