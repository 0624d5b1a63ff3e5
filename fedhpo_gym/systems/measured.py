"""Network speeds of 19 phones, as FLASH publishes them.

Facts from `models/speed_distri.json` of github.com/PKU-Chengxu/FLASH (BSD-2-Clause; Yang et al.,
"Characterizing Impacts of Heterogeneity in Federated Learning upon Large-Scale Smartphone Data",
WWW 2021), rounded to 0.1 kB/s. A kB has 1,024 bytes there.
"""

from typing import Final

KILOBYTE: Final = 1024.0

FLASH_KB_PER_S: Final[tuple[tuple[float, float, float, float], ...]] = (
    (7491.4, 3369.3, 4935.2, 2767.3),
    (4054.8, 1819.5, 3006.2, 890.1),
    (2370.2, 1388.2, 2774.2, 1096.9),
    (9913.0, 1551.0, 6635.4, 1459.5),
    (4208.7, 1481.6, 2974.5, 833.2),
    (3778.5, 2843.4, 2631.6, 1576.4),
    (3472.7, 1276.7, 5140.6, 2277.4),
    (4668.4, 612.6, 3205.5, 419.4),
    (3297.7, 771.3, 2336.6, 1609.9),
    (4283.6, 1561.0, 3641.6, 1495.0),
    (3658.1, 1315.9, 2546.9, 1089.0),
    (7214.1, 3363.2, 4039.7, 2189.0),
    (8885.5, 1999.1, 6278.6, 489.1),
    (5125.0, 2087.6, 3729.8, 461.5),
    (7271.3, 1914.0, 5742.5, 1964.1),
    (4317.6, 1265.0, 3285.7, 1018.3),
    (6708.1, 6738.5, 664.6, 312.0),
    (17332.7, 11181.6, 5641.5, 2549.8),
    (3176.8, 1838.0, 431.0, 157.7),
)
"""Mean and standard deviation of the speed to a phone, then of that from it, in kB/s."""
