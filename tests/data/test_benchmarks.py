"""The definitions in splits/*.json against the numbers of the literature."""

import pytest

from unida.data.benchmarks import RoleCounts, available, load_benchmark
from unida.data.benchmarks.spec import spelling_key
from unida.errors import UserError

CALTECH = [
    "back_pack", "bike", "calculator", "headphones", "keyboard",
    "laptop_computer", "monitor", "mouse", "mug", "projector",
]  # fmt: skip


def sizes(benchmark: str, setting: str) -> tuple[int, int, int]:
    sets = load_benchmark(benchmark).label_sets(setting)
    return len(sets.shared), len(sets.source_private), len(sets.target_private)


def test_available() -> None:
    assert available() == ["domainnet", "office-home", "office31", "visda2017"]


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("office31", "office31"),
        ("Office-31", "office31"),
        ("OFFICE_31", "office31"),
        ("officehome", "office-home"),
        ("Office Home", "office-home"),
        ("visda", "visda2017"),
        ("VisDA-2017", "visda2017"),
        ("VisDA-C", "visda2017"),
        ("DomainNet", "domainnet"),
    ],
)
def test_spellings_of_benchmarks(spelling: str, name: str) -> None:
    assert load_benchmark(spelling).name == name


def test_an_unknown_benchmark_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"'ofice31' \(did you mean 'office31'\?\); there are domainnet, office-home"):
        load_benchmark("ofice31")
    with pytest.raises(UserError, match="no benchmark 'mnist'; there are"):
        load_benchmark("mnist")


@pytest.mark.parametrize(
    ("benchmark", "setting", "expected"),
    [
        ("office31", "cda", (31, 0, 0)),
        ("office31", "pda", (10, 21, 0)),
        ("office31", "osda", (10, 0, 11)),
        ("office31", "unida", (10, 10, 11)),
        ("office31", "osda:ros", (10, 0, 11)),
        ("office31", "osda:tllib", (20, 0, 11)),
        ("office31", "osda:uniood", (10, 0, 21)),
        ("office-home", "cda", (65, 0, 0)),
        ("office-home", "pda", (25, 40, 0)),
        ("office-home", "osda", (25, 0, 40)),
        ("office-home", "unida", (10, 5, 50)),
        ("office-home", "osda:dance", (15, 0, 50)),
        ("office-home", "osda:uniood", (15, 0, 50)),
        ("visda2017", "cda", (12, 0, 0)),
        ("visda2017", "pda", (6, 6, 0)),
        ("visda2017", "osda", (6, 0, 6)),
        ("visda2017", "unida", (6, 3, 3)),
        ("visda2017", "osda:osbp", (6, 0, 6)),
        ("visda2017", "osda:tllib", (6, 0, 6)),
        ("domainnet", "unida", (150, 50, 145)),
        ("domainnet", "unida:glc", (150, 50, 145)),
        ("domainnet", "osda:uniood", (150, 0, 195)),
        ("domainnet", "pda:uniood", (150, 195, 0)),
        ("domainnet", "cda:uniood", (345, 0, 0)),
    ],
)
def test_class_numbers_of_every_split(benchmark: str, setting: str, expected: tuple[int, int, int]) -> None:
    assert sizes(benchmark, setting) == expected


def test_the_table_above_names_every_split() -> None:
    (mark,) = test_class_numbers_of_every_split.pytestmark  # type: ignore[attr-defined]
    listed = {(benchmark, setting) for benchmark, setting, _ in mark.args[1]}
    assert listed == {(name, setting) for name in available() for setting in load_benchmark(name).settings}


@pytest.mark.parametrize("name", ["domainnet", "office-home", "office31", "visda2017"])
def test_every_split_agrees_with_its_name_and_tells_its_source(name: str) -> None:
    benchmark = load_benchmark(name)
    for setting in benchmark.settings:
        split = benchmark.split(setting)
        assert split.label_sets.setting == setting.partition(":")[0]
        assert set(split.label_sets.source_classes + split.label_sets.target_classes) <= set(benchmark.classes)
        assert split.note


@pytest.mark.parametrize("name", ["domainnet", "office-home", "office31", "visda2017"])
def test_counts_add_up_to_the_published_totals(name: str) -> None:
    benchmark = load_benchmark(name)
    assert benchmark.counts
    for (domain, part), per_class in benchmark.counts.items():
        assert tuple(per_class) == benchmark.classes
        assert sum(per_class.values()) == benchmark.published_total(domain, part)


@pytest.mark.parametrize("name", ["domainnet", "office-home", "office31", "visda2017"])
def test_tolerant_spelling_keeps_classes_and_domains_apart(name: str) -> None:
    benchmark = load_benchmark(name)
    assert len({spelling_key(label) for label in benchmark.classes}) == len(benchmark.classes)
    spellings = [{spelling_key(text) for text in (d.name, d.letter, *d.aliases)} for d in benchmark.domains]
    assert len(set.union(*spellings)) == sum(map(len, spellings))


def test_office31_order_and_the_gap_of_its_open_set() -> None:
    benchmark = load_benchmark("office31")
    assert list(benchmark.classes[:10]) == CALTECH
    assert list(benchmark.classes[10:]) == sorted(set(benchmark.classes) - set(CALTECH))
    osda, unida = benchmark.label_sets("osda"), benchmark.label_sets("unida")
    assert list(osda.shared) == CALTECH
    assert osda.target_private == unida.target_private == benchmark.classes[20:]
    discarded = set(benchmark.classes) - set(osda.source_classes + osda.target_classes)
    assert discarded == set(benchmark.classes[10:20]) == set(unida.source_private)
    assert unida.target_private[0] == "pen"
    assert unida.target_private[-1] == "trash_can"


def test_office31_splits_of_other_papers() -> None:
    benchmark = load_benchmark("office31")
    ros = benchmark.label_sets("osda:ros")
    assert list(ros.shared) == [
        "back_pack", "bike", "bike_helmet", "bookcase", "bottle",
        "calculator", "desk_chair", "desk_lamp", "desktop_computer", "file_cabinet",
    ]  # fmt: skip
    assert list(ros.target_private) == [
        "phone", "printer", "projector", "punchers", "ring_binder", "ruler",
        "scissors", "speaker", "stapler", "tape_dispenser", "trash_can",
    ]  # fmt: skip
    tllib = benchmark.label_sets("osda:tllib")
    assert list(tllib.shared) == sorted(benchmark.classes)[:20]
    assert tllib.target_private == ros.target_private
    assert benchmark.label_sets("osda:uniood").target_private == benchmark.classes[10:]


def test_office_home_is_in_ascii_order() -> None:
    benchmark = load_benchmark("office-home")
    assert list(benchmark.classes) == sorted(benchmark.classes)
    assert benchmark.classes[58:60] == ("TV", "Table")
    assert benchmark.label_sets("unida").source_private == (
        "Chair", "Clipboards", "Computer", "Couch", "Curtains",
    )  # fmt: skip
    assert benchmark.label_sets("osda").shared[-1] == "Fork"
    assert benchmark.label_sets("osda:dance").shared == benchmark.classes[:15]


def test_domainnet_order_is_that_of_the_official_lists() -> None:
    benchmark = load_benchmark("domainnet")
    places = {
        66: "cello",
        67: "cell_phone",
        205: "paintbrush",
        206: "paint_can",
        327: "t-shirt",
        344: "zigzag",
    }
    assert {place: benchmark.classes[place] for place in places} == places
    assert [name[:4] for name in benchmark.classes[308:311]] == ["The_"] * 3
    sets = benchmark.label_sets("unida")
    assert (sets.shared[0], sets.shared[-1]) == ("aircraft_carrier", "hot_air_balloon")
    assert (sets.source_private[0], sets.source_private[-1]) == ("hot_dog", "ocean")
    assert (sets.target_private[0], sets.target_private[-1]) == ("octagon", "zigzag")
    assert benchmark.label_sets("unida:glc").shared[0] == "The_Eiffel_Tower"


def test_visda_open_sets_differ() -> None:
    benchmark = load_benchmark("visda")
    assert benchmark.label_sets("osda").shared == benchmark.classes[:6]
    vehicles = ("bicycle", "bus", "car", "motorcycle", "train", "truck")
    assert benchmark.label_sets("osda:osbp").shared == vehicles
    assert set(benchmark.label_sets("osda:osbp").target_private) == set(benchmark.classes) - set(vehicles)
    assert benchmark.label_sets("osda:tllib") == benchmark.label_sets("osda:osbp")


# domain, setting, images as source, as target: shared, private, unknown fraction
OFFICE_TABLE = [
    ("office31", "amazon", "unida", 1808, 958, 1009, 0.513),
    ("office31", "dslr", "unida", 323, 157, 175, 0.527),
    ("office31", "webcam", "unida", 526, 295, 269, 0.477),
    ("office31", "amazon", "osda", 958, 958, 1009, 0.513),
    ("office31", "dslr", "osda", 157, 157, 175, 0.527),
    ("office31", "webcam", "osda", 295, 295, 269, 0.477),
    ("office-home", "Ar", "unida", 743, 525, 1684, 0.762),
    ("office-home", "Cl", "unida", 1116, 772, 3249, 0.808),
    ("office-home", "Pr", "unida", 1077, 654, 3362, 0.837),
    ("office-home", "Rw", "unida", 1203, 829, 3154, 0.792),
    ("office-home", "Ar", "osda", 1089, 1089, 1338, 0.551),
    ("office-home", "Cl", "osda", 1675, 1675, 2690, 0.616),
    ("office-home", "Pr", "osda", 1785, 1785, 2654, 0.598),
    ("office-home", "Rw", "osda", 1811, 1811, 2546, 0.584),
]


@pytest.mark.parametrize(("name", "domain", "setting", "source", "shared", "private", "fraction"), OFFICE_TABLE)
def test_published_image_numbers(
    name: str, domain: str, setting: str, source: int, shared: int, private: int, fraction: float
) -> None:
    benchmark = load_benchmark(name)
    sets = benchmark.label_sets(setting)
    as_source = benchmark.expected_counts(domain, sets, "source")
    as_target = benchmark.expected_counts(domain, sets, "target")
    assert as_source is not None
    assert as_source.total == source
    assert as_target == RoleCounts(shared, private)
    assert as_target.private_fraction == pytest.approx(fraction, abs=5e-4)


@pytest.mark.parametrize(
    ("name", "domain", "total"),
    [
        ("office31", "amazon", 2817),
        ("office31", "dslr", 498),
        ("office31", "webcam", 795),
        ("office-home", "Art", 2427),
        ("office-home", "Clipart", 4365),
        ("office-home", "Product", 4439),
        ("office-home", "Real World", 4357),
        ("visda2017", "validation", 55388),
        ("visda2017", "train", 152397),
        ("domainnet", "real", 120906 + 52041),
    ],
)
def test_published_totals(name: str, domain: str, total: int) -> None:
    benchmark = load_benchmark(name)
    assert benchmark.published_total(domain, "all") == total
    per_class = benchmark.published(domain, "all")
    assert per_class is None or sum(per_class.values()) == total


def test_visda_validation_counts() -> None:
    benchmark = load_benchmark("visda2017")
    counts = benchmark.published("validation", "all")
    assert counts is not None
    assert list(counts.values()) == [
        3646, 3475, 4690, 10401, 4691, 2075, 5796, 4000, 4549, 2281, 4236, 5548,
    ]  # fmt: skip
    target = benchmark.expected_counts("validation", benchmark.label_sets("unida"), "target", "evaluate")
    assert target == RoleCounts(28978, 12065)
    assert benchmark.expected_counts("train", benchmark.label_sets("unida"), "source") is None


@pytest.mark.parametrize(
    ("domain", "train", "test"),
    [
        ("painting", (21513, 9034, 19869), (9321, 8630)),
        ("sketch", (17743, 5568, 24901), (7693, 10798)),
        ("real", None, (23170, 21207)),
    ],
)
def test_domainnet_image_numbers(domain: str, train: tuple[int, int, int] | None, test: tuple[int, int]) -> None:
    benchmark = load_benchmark("domainnet")
    sets = benchmark.label_sets("unida")
    source = benchmark.expected_counts(domain, sets, "source", "adapt")
    adapted = benchmark.expected_counts(domain, sets, "target", "adapt")
    if train is None:
        assert source is None
        assert adapted is None
    else:
        assert source == RoleCounts(train[0], train[1])
        assert adapted == RoleCounts(train[0], train[2])
    assert benchmark.expected_counts(domain, sets, "target", "evaluate") == RoleCounts(*test)


def test_domainnet_says_which_list_is_adapted_on_and_which_evaluated() -> None:
    protocol = load_benchmark("domainnet").protocol
    assert (protocol.adapt, protocol.evaluate) == ("train", "test")
    assert "DCC" in protocol.note


def test_domainnet_lists_lack_a_class() -> None:
    benchmark = load_benchmark("domainnet")
    assert benchmark.counts["painting", "train"]["t-shirt"] == 0
    assert benchmark.counts["painting", "test"]["syringe"] == 0
    assert [name for name, count in benchmark.counts["sketch", "train"].items() if count == 0] == []


def test_a_setting_that_does_not_exist_lists_those_that_do() -> None:
    with pytest.raises(UserError, match="DomainNet has no setting 'cda': it has unida, unida:glc, osda:uniood"):
        load_benchmark("domainnet").label_sets("cda")
    with pytest.raises(UserError, match="Office-Home has no setting 'osda:osbp'"):
        load_benchmark("office-home").label_sets("osda:osbp")


def test_setting_names_ignore_case() -> None:
    benchmark = load_benchmark("office31")
    assert benchmark.label_sets(" OSDA:ROS") == benchmark.label_sets("osda:ros")


@pytest.mark.parametrize(
    ("name", "spelling", "domain"),
    [
        ("office31", "A", "amazon"),
        ("office31", "d", "dslr"),
        ("office31", "Webcam", "webcam"),
        ("office-home", "Ar", "Art"),
        ("office-home", "Cl", "Clipart"),
        ("office-home", "Pr", "Product"),
        ("office-home", "Rw", "Real World"),
        ("office-home", "R", "Real World"),
        ("office-home", "RealWorld", "Real World"),
        ("office-home", "real_world", "Real World"),
        ("office-home", "real", "Real World"),
        ("domainnet", "P", "painting"),
        ("domainnet", "R", "real"),
        ("domainnet", "S", "sketch"),
        ("visda2017", "synthetic", "train"),
        ("visda2017", "real", "validation"),
        ("visda2017", "val", "validation"),
    ],
)
def test_spellings_of_domains(name: str, spelling: str, domain: str) -> None:
    assert load_benchmark(name).domain(spelling) == domain


def test_an_unknown_domain_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"'amazn' \(did you mean 'amazon'\?\); it has amazon \(A\), dslr \(D\)"):
        load_benchmark("office31").domain("amazn")
    with pytest.raises(UserError, match="DomainNet has no domain 'quickdraw'; it has painting"):
        load_benchmark("domainnet").domain("quickdraw")


def test_parse_pair() -> None:
    assert load_benchmark("office31").parse_pair("amazon:dslr") == ("amazon", "dslr")
    assert load_benchmark("office-home").parse_pair("Rw : Ar") == ("Real World", "Art")
    assert load_benchmark("visda").parse_pair("syn:real") == ("train", "validation")


@pytest.mark.parametrize("text", ["amazon", "amazon:", ":dslr", "amazon:dslr:webcam", "", "amazon-dslr"])
def test_a_bad_pair_shows_the_form(text: str) -> None:
    with pytest.raises(UserError, match=r"not a pair of domains: write source:target, e\.g\. 'amazon:dslr'"):
        load_benchmark("office31").parse_pair(text)


def test_a_pair_needs_two_domains() -> None:
    with pytest.raises(UserError, match=r"has amazon on both sides: choose another domain \(dslr, webcam\)"):
        load_benchmark("office31").parse_pair("A:amazon")


def test_role_and_part_are_checked() -> None:
    benchmark = load_benchmark("office31")
    sets = benchmark.label_sets("unida")
    with pytest.raises(UserError, match="role 'teacher' is not known: use 'source' or 'target'"):
        benchmark.expected_counts("amazon", sets, "teacher")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="part 'train' is not known: use 'adapt' or 'evaluate'"):
        benchmark.expected_counts("amazon", sets, "source", "train")  # type: ignore[arg-type]
