"""Raw mode, alone, against sampled courses of the samples: do they hold what training gives?

Trains a few courses of every sample one by one, for the first rounds, encodes their metrics as
samples do and compares the codes of all clients, splits and metrics. A sample that was trained on
another kind of device has other bits; the difference of the accuracy says whether it is the same.

    python benchmarks/reproduce_samples.py --courses 2 --rounds 6
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import measuring
import numpy as np

from fedhpo_gym.backends.raw import Raw
from fedhpo_gym.errors import MissingDataError
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Fidelity
from fedhpo_gym.seeding import stream
from fedhpo_gym.tables import Sample, codec, list_samples, open_sample
from fedhpo_gym.tasks import task_of


def compare(sample: Sample, course: int, last: int) -> tuple[bool, float]:
    """Train a course alone, up to a round.

    Returns:
        Whether all codes are those of the sample, and the largest difference of the validation
        accuracy, of all clients together.
    """
    position = int(sample.codes("seed")[course])
    backend = Raw(task_of(sample.identity), sample.seeds[position])
    rate = float(sample.codes("client_sample_rate")[course])
    stored_accuracy = sample.objective("val", "accuracy")[course]
    equal, apart = True, 0.0
    for place, rounds in enumerate(sample.rounds):
        if rounds > last or not sample.trained[course, place]:
            break
        found = backend.evaluate(sample.configurations()[course], Fidelity(rounds, rate))
        assert found.current is not None  # noqa: S101 - raw always knows the current values
        apart = max(apart, abs(found.mean("val", "accuracy") - stored_accuracy[place]))
        for which, metrics in (("best", found.best[0]), ("current", found.current[0])):
            for s, split in enumerate(SPLITS):
                samples = sample.split_samples(split)[position]
                for m, metric in enumerate(METRICS):
                    code = codec.encode(metric, metrics[:, s, m], samples)
                    stored = sample.codes(f"{which}_{split}_{metric}")[course, place]
                    equal &= np.array_equal(code, stored)
    return equal, float(apart)


def row(name: str, courses: int, last: int) -> list[object]:
    """Return one line of the report."""
    sample = open_sample(name)
    chosen = stream(0, "reproduce", *map(ord, name)).permutation(len(sample))[:courses]
    upto = max(rounds for rounds in sample.rounds if rounds <= last)
    try:
        found = [compare(sample, course, last) for course in chosen.tolist()]
    except MissingDataError:
        return [name, len(chosen), upto, "no data here", ""]
    apart = [difference for _, difference in found]
    words = ", ".join(f"{difference:.4f}" for difference in sorted(apart))
    return [name, len(chosen), upto, sum(equal for equal, _ in found), words]


def main(argv: Sequence[str] | None = None) -> str:
    """Train, compare, print the table and write it to a file."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("--courses", type=int, default=2, help="courses of every sample")
    parser.add_argument("--rounds", type=int, default=6, help="rounds they are trained")
    parser.add_argument("--samples", nargs="*", help="names of samples; all by default")
    options = parser.parse_args(argv)
    load = measuring.load_average()
    lines = []
    for name in options.samples or list_samples():
        lines.append(row(name, options.courses, options.rounds))
        print(*lines[-1], file=sys.stderr, flush=True)
    header = ["sample", "courses", "rounds", "equal bit by bit", "validation accuracy differs by"]
    report = measuring.table(header, lines)
    command = ["python", "benchmarks/reproduce_samples.py"]
    command += [f"--courses {options.courses} --rounds {options.rounds}"]
    command += [f"--samples {' '.join(options.samples)}"] if options.samples else []
    return measuring.write_report(options.out, "Samples, trained again", command, load, [report])


if __name__ == "__main__":
    main()
