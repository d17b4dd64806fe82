"""An IJB-B or IJB-C of full size with known truth, laid out on disk as the real one.

`scale` shrinks people, images and probes (and pairs by its square), so that the same path runs in
a test.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.generate.truth import (
    DRAWS,
    Floats,
    Ints,
    SphereCosine,
    Truth,
    accepted_at,
    first_among,
    genuine_scores,
    random_directions,
    truth_of,
    write_lines,
    write_truth,
    write_vectors,
)
from sphereface2.workers import Progress, unseen

EMBEDDINGS = "embeddings.npy"

_LINES = 1 << 20
_POINTS = "38.3 51.7 73.5 51.5 56.0 71.7 41.5 92.4 70.7 92.2"
_COLUMNS = "TEMPLATE_ID,SUBJECT_ID,FILENAME,SIGHTING_ID,FACE_X,FACE_Y,FACE_WIDTH,FACE_HEIGHT\n"


@dataclass(frozen=True)
class IjbSizes:
    """How large an IJB set is; a person has one gallery template."""

    prefix: str
    galleries: tuple[tuple[str, int], ...]
    images: int
    probes: int
    genuine: int
    impostors: int

    @property
    def people(self) -> int:
        return sum(count for _, count in self.galleries)

    def scaled(self, scale: float) -> "IjbSizes":
        galleries = tuple((name, max(4, round(count * scale))) for name, count in self.galleries)
        people = sum(count for _, count in galleries)
        probes = max(2 * people, round(self.probes * scale))
        return IjbSizes(
            prefix=self.prefix,
            galleries=galleries,
            images=max(2 * (people + probes), round(self.images * scale)),
            probes=probes,
            genuine=min(probes, max(people, round(self.genuine * scale))),
            impostors=max(100, round(self.impostors * scale**2)),
        )


IJBB = IjbSizes("ijbb", (("S1", 931), ("S2", 914)), 227_630, 10_270, 10_270, 8_000_000)
IJBC = IjbSizes("ijbc", (("G1", 1_772), ("G2", 1_759)), 469_375, 19_593, 19_557, 15_638_932)


def generate_ijb(
    root: Path,
    *,
    sizes: IjbSizes = IJBC,
    scale: float = 1.0,
    dim: int = 512,
    seed: int = 0,
    progress: Progress = unseen,
) -> Truth:
    """Write meta/ in the official layout and embeddings.npy, a row per image, to `root`.

    The noise of an image depends on its template, so that good and bad templates differ.
    """
    if scale != 1.0:
        sizes = sizes.scaled(scale)
    rng = np.random.default_rng(seed)
    people = sizes.people
    # Templates 1..people are the gallery, the rest the probes; everyone has a probe.
    person = np.concatenate(
        [np.arange(people), np.arange(people), rng.integers(0, people, sizes.probes - people)]
    )
    count = person.size
    weights = rng.gamma(1.0, size=count) + 0.05
    images = 1 + rng.multinomial(sizes.images - count, weights / weights.sum())
    template = np.repeat(np.arange(count), images)
    starts = np.cumsum(images) - images
    new_media = rng.random(template.size) < 0.4
    new_media[starts] = True
    media = np.cumsum(new_media, dtype=np.int64)
    per_media = np.bincount(media)[media]
    media_of_template = np.add.reduceat(new_media, starts, dtype=np.int64)
    # A template's variance: each image has the share 1 / (images of its media × media).
    shares = 1.0 / (per_media * media_of_template[template])
    wanted = np.exp(rng.normal(0.4, 0.8, count))
    unit_variance = np.add.reduceat(shares**2, starts)
    image_noise = (wanted / unit_variance)[template]
    root.mkdir(parents=True, exist_ok=True)
    _write_ijb_lists(root / "meta", sizes, person, template, media, rng)
    directions = random_directions(people, dim, rng)
    write_vectors(
        root / EMBEDDINGS, person[template], image_noise, directions=directions, rng=rng,
        progress=progress,
    )  # fmt: skip
    truth = _ijb_truth(sizes, person, wanted, dim=dim, rng=rng)
    write_truth(root, truth)
    return truth


def _ijb_truth(
    sizes: IjbSizes, person: Ints, noise: Floats, *, dim: int, rng: np.random.Generator
) -> Truth:
    law = SphereCosine(dim)
    people, probes = sizes.people, sizes.probes
    gallery_noise, probe_noise = noise[person[people:]], noise[people:]
    repeats = -(-DRAWS // probes)
    drawn = np.stack(
        [genuine_scores(gallery_noise, probe_noise, dim=dim, rng=rng) for _ in range(repeats)]
    )
    paired = drawn[:, : sizes.genuine].reshape(-1)
    expected = {
        f"TAR@FAR={far:g}": accepted_at(paired, law.threshold(far))
        for far in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    }
    bounds = np.cumsum([0] + [count for _, count in sizes.galleries])
    per_gallery = []
    for low, high in pairwise(bounds):
        mated = drawn[:, (person[people:] >= low) & (person[people:] < high)].reshape(-1)
        enrolled = int(high - low)
        rates = {"rank 1": first_among(mated, law, enrolled - 1)}
        for fpir in (0.01, 0.1):
            bar = law.threshold(1.0 - (1.0 - fpir) ** (1.0 / enrolled))
            rates[f"TPIR@FPIR={fpir:g}"] = first_among(mated, law, enrolled - 1, at_least=bar)
        per_gallery.append(rates)
    for key in per_gallery[0]:
        expected[f"standard {key}"] = float(np.mean([rates[key] for rates in per_gallery]))
    expected["legacy rank 1"] = first_among(drawn.reshape(-1), law, people - 1)
    for fpir in (0.01, 0.1):
        share = np.ceil(fpir * probes) / (probes * (people - 1))
        expected[f"legacy TPIR@FPIR={fpir:g}"] = accepted_at(drawn, law.threshold(share))
    return truth_of(expected, paired, dim=dim)


def _write_ijb_lists(
    folder: Path,
    sizes: IjbSizes,
    person: Ints,
    template: Ints,
    media: Ints,
    rng: np.random.Generator,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    prefix, people = folder / sizes.prefix, sizes.people
    ids, subjects = (template + 1).tolist(), (person[template] + 1).tolist()
    faces = enumerate(zip(ids, media.tolist(), strict=True), start=1)
    write_lines(
        Path(f"{prefix}_face_tid_mid.txt"), [f"{i}.jpg {tid} {mid}" for i, (tid, mid) in faces]
    )
    scores = np.round(rng.uniform(0.5, 1.0, template.size), 3).tolist()
    write_lines(
        Path(f"{prefix}_name_5pts_score.txt"),
        [f"{i}.jpg {_POINTS} {score}" for i, score in enumerate(scores, start=1)],
    )
    low = 0
    lists = []
    for name, count in sizes.galleries:
        lists.append((f"gallery_{name}", low, low + count))
        low += count
    lists.append(("probe_mixed", people, person.size))
    for name, first, last in lists:
        rows = range(*np.searchsorted(template, [first, last]).tolist())
        lines = (f"{ids[i]},{subjects[i]},{i + 1}.jpg,{i + 1},0,0,112,112\n" for i in rows)
        Path(f"{prefix}_1N_{name}.csv").write_text(_COLUMNS + "".join(lines))
    _write_pairs(Path(f"{prefix}_template_pair_label.txt"), sizes, person, rng)


def _write_pairs(path: Path, sizes: IjbSizes, person: Ints, rng: np.random.Generator) -> None:
    """Gallery template, probe template, label; in random order, lines from ready-made pieces."""
    people = sizes.people
    left_text = np.array([f"{i + 1} ".encode() for i in range(people)], dtype=object)
    right_text = np.array(
        [f"{i + 1} 0\n".encode() for i in range(people, person.size)], dtype=object
    )
    probes = rng.permutation(sizes.probes)[: sizes.genuine]
    pieces = [f"{person[people + p] + 1} {people + p + 1} 1\n".encode() for p in probes.tolist()]
    with path.open("wb") as file:
        written = 0
        blocks = -(-sizes.impostors // _LINES)
        shares = np.array_split(np.arange(len(pieces)), blocks)
        for share in shares:
            wanted = min(_LINES, sizes.impostors - written)
            left = rng.integers(0, people, wanted)
            right = rng.integers(0, sizes.probes, wanted)
            # Someone else: the next person of the gallery if chance chose the same one.
            left = np.where(left == person[people + right], (left + 1) % people, left)
            lines = (left_text[left] + right_text[right]).tolist()
            lines += [pieces[i] for i in share.tolist()]
            file.write(b"".join(lines))
            written += wanted
