"""All studies by name."""

from unida.studies.ablation import ABLATION
from unida.studies.base import Study
from unida.studies.few_classes import FEW_CLASSES
from unida.studies.grid_size import GRID_SIZE
from unida.studies.seeds import SEEDS

STUDIES: dict[str, Study] = {study.name: study for study in (ABLATION, GRID_SIZE, SEEDS, FEW_CLASSES)}
