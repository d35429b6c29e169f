"""The methods, by the name that `--method` takes. To add one: write its files, and list its card here."""

from unida.methods.card import Card
from unida.methods.dance_options import CARD as DANCE
from unida.methods.dcc_options import CARD as DCC
from unida.methods.ovanet_options import CARD as OVANET
from unida.methods.ros_options import CARD as ROS
from unida.methods.source_only_options import CARD as SOURCE_ONLY
from unida.methods.usfda_options import CARD as USFDA
from unida.methods.zhu_options import CARD as ZHU

METHODS: dict[str, Card] = {card.name: card for card in (SOURCE_ONLY, OVANET, DCC, DANCE, ROS, USFDA, ZHU)}

__all__ = ["METHODS", "Card"]
