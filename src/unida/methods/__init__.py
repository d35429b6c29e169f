"""The methods, by the name that `--method` takes. To add one: write its files, and list its card here."""

from unida.methods.card import Card
from unida.methods.cmu_options import CARD as CMU
from unida.methods.dcc_options import CARD as DCC
from unida.methods.iuan_options import CARD as IUAN
from unida.methods.ovanet_options import CARD as OVANET
from unida.methods.source_only_options import CARD as SOURCE_ONLY
from unida.methods.uan_options import CARD as UAN

METHODS: dict[str, Card] = {card.name: card for card in (SOURCE_ONLY, OVANET, DCC, UAN, IUAN, CMU)}

__all__ = ["METHODS", "Card"]
