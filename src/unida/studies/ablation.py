"""`unida study ablation`: what each part of SPA adds to a method."""

from unida.studies.base import HOS_COLUMNS, Row, Study, draw_bars, hos_of, hos_table, of_method, of_spa
from unida.studies.options import StudyOptions


def rows(options: StudyOptions) -> list[Row]:
    method = options.method
    return [
        Row(method, of_method(method, options), {"words": "no", "entropy": "no", "pretext": "no"}),
        *(
            Row(
                method + name,
                of_spa(method, options, entropy, pretext),
                {"words": "yes", "entropy": "yes" if entropy else "no", "pretext": "yes" if pretext else "no"},
            )
            for name, entropy, pretext in (
                ("+words", False, False),
                ("+words+entropy", True, False),
                ("+words+pretext", False, True),
                ("+spa", True, True),
            )
        ),
    ]


ABLATION = Study(
    name="ablation",
    about="What each part of SPA adds: the method, + words, + words and entropy, + words and pretext task, + all.",
    rows=rows,
    measured=HOS_COLUMNS,
    measure=hos_of,
    tables=hos_table,
    draw=draw_bars,
    paper="Words alone and words with the entropy loss help little. The pretext task helps most, and all parts "
    "together are best.",
    published="ablation",
)
