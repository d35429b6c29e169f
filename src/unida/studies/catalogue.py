"""All studies by name."""

from unida.studies.ablation import ABLATION
from unida.studies.base import Study
from unida.studies.correlation import CORRELATION
from unida.studies.few_classes import FEW_CLASSES
from unida.studies.grid_size import GRID_SIZE
from unida.studies.openness import OPENNESS
from unida.studies.pretext import PRETEXT
from unida.studies.private_probe import PRIVATE_PROBE
from unida.studies.seeds import SEEDS

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (ABLATION, PRETEXT, OPENNESS, GRID_SIZE, PRIVATE_PROBE, CORRELATION, SEEDS, FEW_CLASSES)
}
